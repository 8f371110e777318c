/* How a rank learns that an operation cannot end, and what it tells: csrc/engines/cpu/communicator.cpp
 * (evidence, failure_of, told_by, fail, leave). Included by flag_protocol.pml, for its names.
 *
 * Modelled: every load of evidence() by itself, in its order, for one peer after the other; then
 * the flags. A poison is one store: its mark is a release store behind the rest of the control block.
 * Abstracted: texts; waking the peers (doorbell.pml); the time a death takes to be noticed is part
 * of the time that a look takes to come. */

#define FINE 0
#define MISMATCH 1
#define TIMEOUT 2
#define LOST 3
#define LEFT 4
#define POISONED 5

#define NOBODY 9

/* A change that a look may find. A look that found nothing is not repeated before the next one:
 * it would find nothing again. So a rank that nothing will ever help is stuck, and not busy. */
inline notice() { for (q : 0 .. N - 1) { fresh[q] = true } q = 0 }

/* evidence() for peer p: what it says of operation `op`, in `found` and `blamed`. */
inline look_at_poison() {
  d_step {
    if
    :: poison[p] != 0 ->
       told = true;
       if
#ifdef NO_FIRST_FAILED
       :: true ->
#else
       :: op >= poison[p] - 1 ->
#endif
          found = cause[p];
          blamed = blame[p];
          if
#ifdef BLAME_MESSENGER
          :: found == POISONED -> blamed = p
#else
          :: blamed == NOBODY && found != MISMATCH -> blamed = p
#endif
          :: else
          fi
       :: else /* it has done its part of this one */
       fi
    :: else
    fi
  }
}

inline look_at_rest() {
  if
  :: !told && gave_notice && awaits(p) -> found = LEFT; blamed = p
  :: !told && !gave_notice && died -> found = LOST; blamed = p
  :: else
  fi;
  told = false; gave_notice = false; died = false
}

/* Only one thing can be at fault in a run. Whoever fails says so, and in the right operation. */
inline check_failure() {
  assert(struck || TIMEOUTS);
  assert(found != TIMEOUT || TIMEOUTS);
  if
  :: found == TIMEOUT
  :: else ->
     assert(fault != DEATH || (found == LOST && blamed == faulty));
     assert(fault != LEAVING || (found == LEFT && blamed == faulty));
     assert(fault != ABORT || (found == POISONED && (blamed == faulty || me == faulty)));
     assert(fault != ODD_CALL || found == MISMATCH);
     assert(fault != LATE)
  fi;
  if
  :: fault == ODD_CALL && struck -> assert(found == TIMEOUT || (op == odd && k <= 1))
  :: fault == LEAVING && !TIMEOUTS ->
     assert(op == well[faulty] || (in_the_middle && op == well[faulty] + 1))
  :: fault == ABORT && !TIMEOUTS ->
     assert(op == well[faulty] || (in_the_middle && op == well[faulty] + 1))
  /* A broadcast ends for a reader before all others have their data: its death may be noticed in it
     by a rank that waits for them. */
  :: fault == DEATH && !TIMEOUTS ->
     assert(op >= well[faulty] || (op + 1 == well[faulty] && kind == CAST))
  :: else
  fi
}

/* An operation ends well where every rank, dead or alive, has ended all before it well, and has
 * called this one alike. Hence one operation f for all: what comes before f ends well everywhere,
 * nothing behind it does anywhere, and f itself ends well, with the right result, or in an error.
 * And every rank ends an operation at the same flag, having read all blocks of all others. */
inline check_end() {
  for (q : 0 .. N - 1) {
    assert(well[q] >= op);
    assert(bases[q] == (well[q] > op -> next_base : base));
    sent = blocks_of(q);
    assert(kind != EXCHANGE || k > sent)
  }
  q = 0;
  assert(op != odd)
}
