/* Who drives: csrc/engines/cpu/communicator.cpp (wait, poll, finish), csrc/engines/cpu/progress_thread.cpp (run).
 * Two threads of one rank share its operation, its drive_ lock and its doorbell: the progress
 * engine, which may not give up, and a caller in wait(timeout), which may. Whoever holds the lock
 * looks for the peer's flag; the other one's look is then in vain, and it may fall asleep although
 * the flag is there. So who leaves the loop must hand over.
 *
 * Modelled: lock, look and unlock as three steps; the caller's release of the lock and both
 * threads' count of sleepers go through store buffers, as in doorbell.pml; the peer publishes
 * once, with its fence. Abstracted: the operation's steps, the peers' doorbells, the bound of a
 * sleep: a wake-up that is lost is a deadlock.
 *
 * Negative controls: -DNO_HAND_OVER, -DNO_FENCE (between the release of the lock and the look at
 * the sleepers), -DNO_FINISH_RING (who ends the operation does not ring). */
bool flag, locked, finished;
byte sleepers, word;
bool unlock_later[2], add_later[2], asleep[2];

#define CALLER 0
#define ENGINE 1
#define drained (!unlock_later[me] && !add_later[me])

proctype Buffer(byte r) {
end:
  do
  :: d_step { unlock_later[r] -> locked = false; unlock_later[r] = false }
  :: d_step { add_later[r] -> sleepers++; add_later[r] = false }
  od
}

inline ring_if_asleep() {
  if
  :: d_step { sleepers != 0 -> word++; asleep[0] = false; asleep[1] = false }
  :: sleepers == 0
  fi
}

/* Communicator::poll: try_lock, one look, unlock, and the ring of finish(). */
inline poll() {
  if
  :: d_step { !locked -> locked = true };
     arrived = flag;
     d_step {
       if :: arrived && !finished -> ended_it = true; finished = true :: else fi;
       arrived = false
     };
     unlock_later[me] = true;
     if
     :: ended_it ->
        drained;
#ifndef NO_FINISH_RING
        ring_if_asleep();
#endif
        ended_it = false
     :: else
     fi
  :: locked
  fi
}

proctype Thread(byte me) {
  byte seen;
  bool arrived, ended_it;

  do
  :: finished -> break
  :: me == CALLER -> break /* its deadline, found by check() */
  :: drained -> poll() /* a look between two yields */
  :: drained ->
     add_later[me] = true;
     drained; /* the fence in sleep_on */
     seen = word;
     poll();
     if
     :: finished
     :: d_step { !finished && word == seen -> asleep[me] = true };
        !asleep[me]
     :: !finished && word != seen
     fi;
     d_step { sleepers--; seen = 0 };
     drained;
     poll() /* ready() after the sleep */
  od;
#ifndef NO_HAND_OVER
  if
  :: me == CALLER ->
#ifndef NO_FENCE
     drained;
#endif
     if
     :: !finished -> ring_if_asleep()
     :: finished
     fi
  :: else
  fi
#endif
}

proctype Peer() {
  flag = true; /* and its fence */
  ring_if_asleep()
}

init {
  atomic {
    run Buffer(CALLER); run Buffer(ENGINE);
    run Thread(CALLER); run Thread(ENGINE);
    run Peer()
  }
}
