/* fastcomm's flag protocol: N ranks run OPS operations, at most one thing goes wrong, anywhere.
 *
 * What it stands for: csrc/README.md, "The flag protocol". This file is the rank: csrc/coll/
 * schedule.h (run_steps), operation.cpp (poll_staged, awaits), operation_in_place.cpp (poll_direct, read_headers),
 * communicator.cpp (drive, leave, abort); schedules.pml is the steps, notices.pml how it fails.
 *
 * Modelled: the schedules' steps, waits and slots, and how many steps there are, where that is known
 * only in step 1; flags that wrap (MODULUS stands for 2^32); headers and calls that differ
 * (ODD_CALL); a process that dies between any two accesses; leave() and abort() between any two
 * steps, by another thread; a rank that never comes (LATE) and timeouts that fire whenever a rank
 * waits; the end of a program: leave notice, then the end of the process. Programs end right after
 * their last operation, or after the first that fails.
 *
 * Memory: what a step writes is torn until its publication makes it whole. A release store may not
 * become visible before what came earlier, nor an acquire load be done after what comes later;
 * -DRELAXED_PUBLISH, -DLATE_READ and -DRELAXED_WAIT let them. Flags and notices are seen as soon as
 * they are stored: they never go back, so a store that lingers in a buffer is a slower rank. Where
 * that is not so, since a store and a load of two ranks cross, doorbell.pml takes over.
 *
 * Abstracted: several operations in the queue (those behind the first wait); who drives
 * (hand_over.pml); sleeping (doorbell.pml); quarantine, beyond who writes into whose tensor;
 * groups formed and torn down.
 *
 * Checked: the assertions here and in the files included; and that no rank is stuck, which spin
 * calls an invalid end state. Where spin finds no cycle either, every run ends, and every operation
 * of every rank with a result or an error.
 *
 * Bounds: 2 or 3 ranks (4 take some ten million states), at most four operations, of at most three
 * blocks, one fault a run. test_flag_protocol.py chooses them, and the negative controls: macros
 * that leave out one rule each. */
#ifndef N
#define N 2
#endif
#ifndef OPS
#define OPS 4
#endif
#ifndef KIND0
#define KIND0 ONE
#define KIND1 TWO
#define KIND2 CAST
#define KIND3 ONE
#endif
#ifndef BLOCKS
#define BLOCKS 3
#endif
#ifndef MOST_BLOCKS
#define MOST_BLOCKS 2
#endif
#ifndef MODULUS
#define MODULUS 8
#endif
#ifndef TIMEOUTS
#define TIMEOUTS 0
#endif
#ifndef FAULTS
#define FAULTS 30
#endif
#ifndef PAYLOAD_SLOTS
#define PAYLOAD_SLOTS 2
#endif
#ifndef HEADER_SLOTS
#define HEADER_SLOTS 2
#endif
#ifndef TABLE_SLOTS
#define TABLE_SLOTS 2
#endif
#ifndef STAGE_SLOTS
#define STAGE_SLOTS 2
#endif
#ifndef RESULT_SLOTS
#define RESULT_SLOTS 2
#endif

#define NONE 0
#define DEATH 1
#define LEAVING 2
#define ABORT 3
#define ODD_CALL 4
#define LATE 5

/* Shared memory. */
byte flag[N];
byte header[2 * N], payload[2 * N], table[2 * N], stage[2 * N], result[2 * N];
byte poison[N]; /* 1 + the first operation that failed there, or 0 */
byte cause[N], blame[N];
byte leave_notice[N]; /* 1 + the operations finished, or 0 */
bool dead[N];
byte tensor[N * N];

/* Known to the model alone. */
byte start; /* of all flags */
byte fault, faulty = 9;
bool struck, in_the_middle;
byte odd = 99;
byte well[N];
byte bases[N]; /* of the operation that a rank is in */
bool stir; /* a notice is about to be given, or has been: no look finds anything before */
bool fresh[N];
hidden byte q, sent; /* sent: blocks of q's stream */

/* core/hd.h */
#ifdef UNSIGNED_COMPARE
#define reached(seen, target) ((seen) >= (target))
#else
#define reached(seen, target) (((seen) + MODULUS - (target)) % MODULUS < MODULUS / 2)
#endif

#define op well[me]
#define base bases[me]
#define end_of(base) (((base) + steps - 1) % MODULUS)
#ifdef BASE_AT_ISSUE
#define next_base (kind == EXCHANGE -> (base + own + 1) % MODULUS : end_of(base))
#else
#define next_base end_of(base)
#endif
#define target (direct -> end_of(base) : (base + k) % MODULUS)
#define awaits(p) \
  (((p) != me && in_wait_set(p) && !reached(flag[p], target)) || stuck == (p) + 1)
#if N == 2
#define awaits_anyone (awaits(0) || awaits(1))
#elif N == 3
#define awaits_anyone (awaits(0) || awaits(1) || awaits(2))
#else
#define awaits_anyone (awaits(0) || awaits(1) || awaits(2) || awaits(3))
#endif
#define strikes(what) (fault == what && me == faulty && !struck)

#include "schedules.pml"
#include "notices.pml"

proctype Rank(byte me) {
  byte k, kind;
  byte own, agreed; /* blocks of an EXCHANGE: of this rank; of who has most, once that is known */
  bool is_odd, ordinary, in_place; /* the call; whether all ranks' tensors can be reached */
  bool direct, differs, clean, expired;
  byte stuck; /* 1 + the peer whose notice keeps this rank from publishing, or 0 */
  byte p, found, blamed = NOBODY, seen;
  bool told, gave_notice, died;

idle: /* between two operations; step 0 begins with the next */
  if
  :: d_step {
       op < OPS && kind_of(op) != EXCHANGE ->
       kind = kind_of(op);
       if :: kind == DIRECT -> set_tensor(INPUT) :: else fi;
       tear()
     }
  :: atomic { op < OPS && kind_of(op) == EXCHANGE -> select(own : 0 .. MOST_BLOCKS) };
     d_step { kind = EXCHANGE; tear() }
  :: d_step { /* a tensor that peers cannot reach: one rank of choice is enough */
       op < OPS && kind_of(op) == DIRECT && me == N - 1 ->
       kind = kind_of(op);
       ordinary = true;
       tear()
     }
  :: d_step {
       op < OPS && strikes(ODD_CALL) ->
       struck = true;
       odd = op;
       is_odd = true;
       kind = (kind_of(op) == ONE -> TWO : ONE);
       tear()
     }
  :: d_step { op == OPS -> stir = true }; goto leave
  :: d_step { op < OPS && strikes(LEAVING) -> struck = true; stir = true }; goto leave
  :: d_step { op < OPS && strikes(ABORT) -> struck = true; stir = true; found = POISONED };
     goto fail
  :: d_step { op < OPS && strikes(LATE) -> struck = true }; goto stop
  :: d_step { strikes(DEATH) -> struck = true; stir = true }; goto die
  fi;

publish: /* the end of step k, and its publication */
  if
#ifdef RELAXED_PUBLISH
  :: d_step { k + 1 < steps -> read(); flag[me] = (base + k + 1) % MODULUS };
     d_step { flush(); k++; fresh[me] = true }
#elif defined(LATE_READ)
  :: d_step { k + 1 < steps -> flush(); flag[me] = (base + k + 1) % MODULUS };
     d_step { read(); k++; fresh[me] = true }
#else
  :: d_step {
       k + 1 < steps ->
       read();
       flush();
       k++;
       flag[me] = (base + k) % MODULUS;
       fresh[me] = true
     }
#endif
  :: d_step { k + 1 == steps -> read(); flush() }; goto end_well
  :: d_step { strikes(DEATH) -> struck = true; stir = true }; goto die
  fi;

wait: /* for the peers to publish step k, or for a notice */
  if
  :: !awaits_anyone
#ifdef FLAGS_FIRST
  :: d_step { awaits_anyone && fresh[me] -> fresh[me] = false; p = (me == 0) }; goto look
#endif
  :: d_step { awaits_anyone && stir && fresh[me] -> fresh[me] = false; p = (me == 0) }; goto look
  :: d_step { awaits_anyone && TIMEOUTS -> expired = true; p = (me == 0) }; goto look
  :: d_step { strikes(LEAVING) -> struck = true; stir = true; in_the_middle = true }; goto leave
  :: d_step {
       strikes(ABORT) -> struck = true; stir = true; in_the_middle = true; found = POISONED
     };
     goto fail
  :: d_step { strikes(DEATH) -> struck = true; stir = true }; goto die
#ifdef RELAXED_WAIT
  :: d_step { awaits_anyone -> read() }; goto wait
#endif
  fi;
  if
  :: d_step { direct -> skip }; goto end_well
  :: d_step { !direct && k == 1 -> read_headers(); }
     if
     :: d_step { differs -> found = MISMATCH; stir = true }; goto fail
     :: !differs && in_place -> goto reduce
     :: d_step {
          !differs && !in_place ->
          if :: kind == EXCHANGE -> read_tables() :: else fi;
          tear()
        }
     fi
  :: d_step { !direct && k > 1 -> tear() }
  :: d_step { strikes(DEATH) -> struck = true; stir = true }; goto die
  fi;
  goto publish;

reduce: /* step 0 of the direct schedule */
  if
  :: d_step { true -> reduce_slice() }
  :: d_step { strikes(DEATH) -> struck = true; stir = true }; goto die
  fi;
#ifndef NO_SECOND_LOOK
  d_step { find_quitters(); fresh[me] = true };
  if
  :: stuck != 0 -> goto wait
  :: stuck == 0
  fi;
#endif
  d_step { direct = true; flag[me] = end_of(base); fresh[me] = true }
  goto wait;

end_well:
  atomic {
    check_end();
    base = next_base;
    if :: direct -> check_tensor() :: else fi;
    if :: kind == DIRECT -> set_tensor(YOURS) :: else fi;
    op++;
    k = 0; kind = 0; own = 0; agreed = 0; direct = false; ordinary = false; in_place = false
  }
  goto idle;

look: /* one load after the other, for each peer */
#ifdef POISON_FIRST
  look_at_poison();
  gave_notice = leave_notice[p] != 0;
  died = dead[p];
#else
  died = dead[p];
  gave_notice = leave_notice[p] != 0;
  look_at_poison();
#endif
  d_step { look_at_rest(); p = p + 1 + (p + 1 == me) };
  if
  :: d_step { found == FINE && p < N -> skip }; goto look
  :: d_step { found == FINE && p >= N && !expired -> p = 0 }; goto wait
  :: d_step { found == FINE && p >= N && expired -> found = TIMEOUT; p = 0; expired = false }
  :: d_step { found != FINE -> p = 0; expired = false }
  fi;
  if
#ifdef FLAGS_FIRST
  :: stir = true
#else
  :: d_step { awaits_anyone -> stir = true }
  :: d_step { !awaits_anyone -> found = FINE; blamed = NOBODY }; goto wait
#endif
  fi;

fail:
  atomic {
    check_failure();
    poison[me] = 1 + op; cause[me] = found; blame[me] = blamed;
    set_tensor(YOURS); /* at once: the worst that its user can do */
    notice();
    found = FINE; blamed = NOBODY; differs = false
  }

leave: /* destroy_process_group; a program that an error ends may not come to it */
  if
  :: atomic { leave_notice[me] = 1 + op; set_tensor(YOURS); notice() }
  :: poison[me] != 0
  fi;

die:
  atomic { dead[me] = true; notice() }

stop:
  skip
}

init {
  atomic {
    notice();
    if
    :: fault = NONE
    :: (FAULTS >> DEATH) & 1 -> fault = DEATH
    :: (FAULTS >> LEAVING) & 1 -> fault = LEAVING
    :: (FAULTS >> ABORT) & 1 -> fault = ABORT
    :: (FAULTS >> ODD_CALL) & 1 -> fault = ODD_CALL
    :: (FAULTS >> LATE) & 1 -> fault = LATE
    fi;
    if
    :: fault == NONE
    :: fault != NONE -> faulty = 0
    :: fault != NONE -> faulty = 1
    :: fault != NONE && N > 2 -> faulty = 2
    :: fault != NONE && N > 3 -> faulty = 3
    fi;
    start = MODULUS - 2; /* the first operation wraps */
#ifdef ANY_START
    if
    :: start = 0 :: start = 1 :: start = 2 :: start = 3 :: start = 4 :: start = 5
    :: start = MODULUS - 2 :: start = MODULUS - 1
    fi;
#endif
    for (q : 0 .. N - 1) { flag[q] = start; bases[q] = start }
    for (q : 0 .. N - 1) { run Rank(q) }
  }
}
