/* The doorbell: csrc/transport/doorbell.h, wait.h (wait_until), kernels/span_cpu.h (publish),
 * transport/transport.h (wake_peers). N ranks meet ROUNDS times: each publishes its flag, then
 * waits for all others', asleep as soon as it may. A wake-up that is lost is a deadlock here.
 *
 * Modelled: a store goes into the store buffer of its rank first, which has one place for each
 * variable, and reaches memory at any later time, in any order. A load sees memory. A fence waits
 * until the buffer is empty; so does the load of the sleepers that follows a publication, since
 * both are sequentially consistent. The futex compares its word and falls asleep in one step, as
 * the kernel does.
 * Abstracted: yields, and the bound of a sleep (in the code at most 50 ms): nobody wakes by itself,
 * unless -DBOUNDED.
 *
 * -DNOTICE: rank 0 publishes nothing in the last round. It tells that it gave up, by a notice that
 * ranks look at between two sleeps (wait_until's check) and not, as at flags, between counting
 * themselves in and falling asleep. Such a notice can be slept over: only BOUNDED makes up for it.
 *
 * Negative controls: -DNO_FENCE_IN_PUBLISH, -DNO_FENCE_IN_SLEEP, -DWORD_AFTER_LOOK (the sleeper
 * reads the futex word after its look at the flags), -DNOTICE alone, -DNO_WAKE (a notice rings no
 * bell, and nobody's sleep is bounded). */
#ifndef N
#define N 2
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif

byte flag[3], sleepers[3], word[3];
bool notice;

/* Store buffers: the value of the flag, what is added to the sleepers, the notice. */
byte flag_later[3];
bool add_later[3], subtract_later[3], notice_later;
bool asleep[3];

#define drained(r) \
  (!flag_later[r] && !add_later[r] && !subtract_later[r] && (r != 0 || !notice_later))
#define there(r) ((r) == me || flag[r] >= round)
#define ready (there(0) && there(1) && (N < 3 || there(2)))

/* The memory's side of a store buffer. */
proctype Buffer(byte r) {
end:
  do
  :: d_step { flag_later[r] != 0 -> flag[r] = flag_later[r]; flag_later[r] = 0 }
  :: d_step { add_later[r] -> sleepers[r]++; add_later[r] = false }
  :: d_step { subtract_later[r] -> sleepers[r]--; subtract_later[r] = false }
  :: d_step { r == 0 && notice_later -> notice = true; notice_later = false }
  od
}

/* ring_if_asleep for every peer. The word is bumped in memory: the call into the kernel that
 * follows lets nothing of this rank linger. */
inline ring_peers() {
  peer = 0;
  do
  :: peer < N && peer != me && sleepers[peer] != 0 ->
     drained(me);
     word[peer]++;
     asleep[peer] = false;
     peer++
  :: d_step { peer < N && (peer == me || sleepers[peer] == 0) -> peer++ }
  :: d_step { peer == N -> peer = 0 } -> break
  od
}

proctype Rank(byte me) {
  byte round = 1, peer, seen;
  bool done;

  do
  :: round <= ROUNDS ->
#ifdef NOTICE
     if
     :: me == 0 && round == ROUNDS ->
        notice_later = true;
        drained(me); /* the fence in wake_peers */
#ifndef NO_WAKE
        ring_peers();
#endif
        goto ended
     :: else
     fi;
#endif
     flag_later[me] == 0 -> /* the older store to one place goes first */
     flag_later[me] = round;
#ifndef NO_FENCE_IN_PUBLISH
     drained(me); /* between publish_flag and ring_if_asleep */
#endif
     ring_peers();
     do
     :: ready -> break
     :: !ready ->
        if
        :: notice -> goto ended /* check() */
        :: !notice
        fi;
        d_step { !add_later[me] && !subtract_later[me] -> add_later[me] = true };
#ifndef NO_FENCE_IN_SLEEP
        drained(me); /* the fence in sleep_on */
#endif
#ifdef WORD_AFTER_LOOK
        done = ready;
        seen = word[me];
#else
        seen = word[me];
        done = ready;
#endif
        if
        :: done
        :: d_step { !done && word[me] == seen -> asleep[me] = true };
           if
           :: !asleep[me]
#ifdef BOUNDED
           :: d_step { asleep[me] -> asleep[me] = false }
#endif
           fi
        :: !done && word[me] != seen
        fi;
        d_step { seen = 0; done = false };
        d_step { !add_later[me] && !subtract_later[me] -> subtract_later[me] = true }
     od;
     round++
  :: round > ROUNDS -> break
  od;
ended:
  skip
}

init {
  atomic {
    run Buffer(0); run Buffer(1);
    run Rank(0); run Rank(1);
    if :: N > 2 -> run Buffer(2); run Rank(2) :: else fi
  }
}
