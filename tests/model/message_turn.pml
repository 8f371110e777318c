/* A rank of one host turns its messages: csrc/c10d/engines/hosts/host_peers.h, with
 * begin_announcing() and take_elsewhere() of csrc/engines/cpu/point_to_point.cpp. A sender gives
 * MESSAGES messages of one tag, each to the ring of the pair in shared memory, or by the backend
 * for the group as a whole if it sees the receiver's mark. The receiver posts as many receives, and
 * at any moment turns: it sets its mark, waits until no message is on its way to the ring, and
 * hands the receives without a message to the backend. Receive number i must get message number i,
 * by whatever way.
 *
 * Modelled: a ring with CELLS places, with sends that wait for room and go on by themselves;
 * messages put aside; both orders of the words that the sides write and then look at.
 * Abstracted: the words are sequentially consistent, as the code asks for; what weaker ones would
 * do is modelled by its effect, two steps in the wrong order. The backend delivers in order. Other
 * tags and senders, which share nothing with these.
 *
 * Negative controls: -DLOOK_FIRST (the sender looks at the mark before it is counted),
 * -DCOUNT_FIRST (the receiver looks at the count before its mark is there), -DNO_WAIT (it does not
 * wait for the count), -DDRAIN_FIRST (it takes what is in the ring before it looks at the count),
 * -DCOUNT_POSTS (a send that waits for room is not counted), -DLEAVE_POSTED (receives without a
 * message stay). */
#ifndef MESSAGES
#define MESSAGES 4
#endif
#define CELLS 1

/* In shared memory. */
byte mark, count;
chan ring = [CELLS] of { byte };
/* The backend's. */
chan backend = [MESSAGES] of { byte };

proctype Sender() {
  byte next, number, seen;
  chan waiting = [MESSAGES] of { byte };

  do
  :: next < MESSAGES ->
#ifdef LOOK_FIRST
     seen = mark;
     count++;
#else
     count++;
     seen = mark;
#endif
     if
     :: seen -> backend!next; count--
     :: !seen ->
        if
        :: len(waiting) == 0 && len(ring) < CELLS -> ring!next; count--
        :: else ->
           waiting!next;
#ifdef COUNT_POSTS
           count--
#endif
        fi
     fi;
     next++
  :: len(waiting) > 0 && len(ring) < CELLS ->
     waiting?number;
     ring!number;
#ifndef COUNT_POSTS
     count--
#endif
  :: next == MESSAGES && len(waiting) == 0 -> break
  od
}

/* A message from the ring, to the oldest receive. */
inline take() {
  ring?number;
  posted?receive;
  assert(receive == number);
  received++
}

inline drain() {
  do
  :: len(ring) > 0 && len(posted) > 0 -> take()
  :: len(ring) > 0 && len(posted) == 0 -> ring?number; aside!number
  :: len(ring) == 0 -> break
  od
}

proctype Receiver() {
  byte next, number, receive, received, seen;
  bool turned;
  chan posted = [MESSAGES] of { byte };
  chan aside = [MESSAGES] of { byte };
  chan handed = [MESSAGES] of { byte };

  do
  :: next < MESSAGES ->
     if
     :: len(aside) > 0 -> aside?number; assert(number == next); received++
     :: len(aside) == 0 && !turned -> posted!next
     :: len(aside) == 0 && turned -> handed!next
     fi;
     next++
  :: len(posted) > 0 && len(ring) > 0 -> take()
  :: !turned ->
#ifdef COUNT_FIRST
     seen = count;
     mark = 1;
     do
     :: drain();
        if
        :: seen == 0 -> break
        :: seen != 0 -> seen = count
        fi
     od;
#else
     mark = 1;
     do
     ::
#ifdef DRAIN_FIRST
        drain();
        seen = count;
#else
        seen = count;
        drain();
#endif
#ifdef NO_WAIT
        break
#else
        if
        :: seen == 0 -> break
        :: seen != 0
        fi
#endif
     od;
#endif
     turned = true;
#ifndef LEAVE_POSTED
     do
     :: len(posted) > 0 -> posted?receive; handed!receive
     :: len(posted) == 0 -> break
     od
#endif
  :: len(handed) > 0 && len(backend) > 0 ->
     handed?receive;
     backend?number;
     assert(receive == number);
     received++
  :: received == MESSAGES -> break
  od
}

init {
  atomic {
    run Sender();
    run Receiver()
  }
}
