/* A call that begins after a rank has raised: csrc/engines/cpu/communicator.cpp (poll_queue),
 * communicator_failures.cpp (given_up_before, fail), communicator.cpp (leave).
 *
 * Modelled: N ranks run OPS operations of one wait, for all. A rank that waits may give up at any
 * moment (a timeout, an abort, a death, which its peers see as a mark like the poison's) or leave
 * with the operation unfinished. Marks and flags are stores and loads of their own.
 * Abstracted: longer schedules: before its last step a rank has published the first all the same;
 * what lets a waiting rank learn of a failure (flag_protocol.pml); the cause that it names.
 *
 * Memory: a mark is out before the error is (release, and a full fence behind it), so a call that
 * the user has ordered behind that error sees it. -DERROR_FIRST raises the error first.
 *
 * Checked: no operation ends well that was called after another rank had raised; and none is
 * refused that has ended well anywhere. */
#ifndef N
#define N 2
#endif
#ifndef OPS
#define OPS 2
#endif

byte flag[N];   /* operations begun */
bool poison[N]; /* this rank has given up */
bool gone[N];   /* this rank has left */

/* Known to the model alone. */
byte well[N];
bool raised; /* some rank's call has, or its operation ended in an error as it left */
hidden byte q;

#define op well[me]
#define there(p) ((p) >= N || flag[p] > op)
#define all_there (there(0) && there(1) && there(2))
#if N == 2
#undef all_there
#define all_there (there(0) && there(1))
#endif

inline look() {
  p = 0;
  do
  :: p < N && p != me ->
     if
     :: d_step { gone[p] -> p = 0 }; goto refused
     :: d_step { !gone[p] -> skip }
     fi;
     if
     :: d_step { poison[p] -> p = 0 }; goto refused
     :: d_step { !poison[p] -> p++ }
     fi
  :: d_step { p == me -> p++ }
  :: p >= N -> break
  od;
  p = 0
}

proctype Rank(byte me) {
  byte p;
  bool too_late;

called:
  if
  :: op == OPS -> goto leave
  :: d_step { op < OPS -> too_late = raised }
  fi;
#if !defined(NO_FIRST_LOOK) && !defined(LOOK_AFTER_STEP_0)
  look();
#endif
  flag[me] = op + 1;
#ifdef LOOK_AFTER_STEP_0
  look();
#endif
  if
  :: d_step { all_there -> assert(!too_late); op++; too_late = false }; goto called
  :: !all_there -> goto fail
  :: !all_there -> goto leave
  fi;

refused:
  atomic {
    for (q : 0 .. N - 1) { assert(well[q] <= op) }
    q = 0
  }

fail:
#ifdef ERROR_FIRST
  raised = true;
  poison[me] = true;
#else
  poison[me] = true;
  raised = true;
#endif

leave:
  gone[me] = true;
  d_step { raised = raised || op < OPS }
}

init {
  atomic {
    for (q : 0 .. N - 1) { run Rank(q) }
    q = 0
  }
}
