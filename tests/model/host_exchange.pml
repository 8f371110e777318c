/* Calls over two hosts of two ranks: csrc/c10d/engines/hosts/host_exchange.h, host_sum.cpp.
 *
 * Ranks 0 and 1 are host 0, ranks 2 and 3 host 1; the rank in a rank's place on the other host is
 * PEER(r). Each rank carries out OPS calls in order. A SHORT one has a step inside the host, an
 * exchange between the first ranks of the hosts, and another step inside; its data is early: it
 * follows the envelope at once, as a kind of message of its own. In a MEET, envelopes are all that
 * they exchange. A LONG one goes in CHUNKS chunks, of which RING are under way; every rank exchanges
 * each of them with its peer.
 *
 * Modelled: a step inside a host is a meeting of its ranks, which compare the call and the step.
 * Between hosts, for envelopes, data and early data each: messages of one kind arrive in the order
 * in which they are sent, each in the buffer whose receive was posted first. Data is read out of
 * the sender's buffer at any time until the send has ended, and written into the receiver's once
 * its receive is posted.
 * Abstracted: failures, sizes, what is summed; envelopes are copied when they are sent.
 *
 * -DUNLIKE: the last call is a LONG one on host 0 and another one (OTHER) on host 1. Both must find
 * that, and no data may arrive for a call that it does not belong to. Early data may, in memory
 * that nobody reads then.
 *
 * Negative controls: -DONE_ENVELOPE (one buffer for received envelopes, and one receive posted),
 * -DNO_COMPARE (chunks are sent before the envelope is read), -DONE_MAIL (early data is of the kind
 * of chunks), -DNO_SENT_WAIT (a chunk's place is used again before its message was sent),
 * -DPOST_EARLY (a chunk's receive is posted before the one that had its place is done), -DNO_ORDER
 * (a rank makes two steps of a call in the other order), -DLATE_LETTER (the next call's envelope is
 * expected only once this one's was read). */
#ifndef OPS
#define OPS 2
#endif
#ifndef KIND0
#define KIND0 LONG
#endif
#ifndef KIND1
#define KIND1 SHORT
#endif
#ifndef KIND2
#define KIND2 SHORT
#endif
#ifndef CHUNKS
#define CHUNKS 4
#endif
#define RING 3
#define SHORT 0
#define LONG 1
#define MEET 2
#define LONGER 3 /* a LONG one, but another */
#ifndef OTHER
#define OTHER SHORT
#endif
#define PEER(r) (((r) + 2) % 4)
#define PARTNER(r) ((r) ^ 1)
#define leads ((me & 1) == 0)
#define VALUE(o, k, c) (1 + (o) * 32 + (k) * 8 + (c)) /* call, its kind, chunk */

#ifdef ONE_ENVELOPE
#define PLACE(n) 0
#else
#define PLACE(n) ((n) & 1)
#endif

byte call_of[4]; /* that a rank is in, as in VALUE */

/* Inside hosts. */
byte met[4];
byte step_of[8]; /* by rank and parity of the meeting */

/* Between hosts: buffers by rank and place; 0: nothing there. */
byte letter_in[8], part[12], part_in[12];
bool part_going[12]; /* sends that have not ended */
byte letters_sent[4], letters_expected[4]; /* by a rank so far */
chan parts[4] = [4] of { byte };          /* to a rank: places of the sender's buffers */
chan letters_moving[4] = [2] of { byte }; /* to a rank: what they hold */
chan parts_moving[4] = [4] of { byte };
chan letters_posted[4] = [2] of { byte }; /* places of the receiver's buffers */
chan parts_posted[4] = [4] of { byte };

/* Early data: of each rank one buffer, and one for what it gets. */
byte early[4], early_in[4];
bool early_going[4];
chan earlies[4] = [1] of { byte };
chan earlies_moving[4] = [1] of { byte };
chan earlies_posted[4] = [1] of { byte };

inline take_part() {
  parts_moving[to]?value;
  parts_posted[to]?place;
  assert(part_in[to * RING + place] == 0); /* overwritten */
  assert((value - 1) / 8 == call_of[to]); /* another call's */
  part_in[to * RING + place] = value;
  value = 0
}

inline take_early() {
  earlies_moving[to]?value;
  earlies_posted[to]?_;
  assert(early_in[to] == 0); /* overwritten */
  early_in[to] = value;
  value = 0
}

/* The way to a rank. What arrives late although its receive is posted is as if the rank looked
 * late: so such a message moves at once when it is taken from the sender. */
proctype Gloo(byte to) {
  byte place, value;
end:
  do
  :: d_step {
       nempty(parts[to]) && nfull(parts_moving[to]) ->
       parts[to]?place;
       parts_moving[to]!part[PEER(to) * RING + place];
       part_going[PEER(to) * RING + place] = false;
       if
       :: nempty(parts_posted[to]) -> take_part()
       :: empty(parts_posted[to])
       fi;
       place = 0
     }
  :: d_step {
       nempty(letters_moving[to]) && nempty(letters_posted[to]) ->
       letters_moving[to]?value;
       letters_posted[to]?place;
       letter_in[to * 2 + place] = value;
       place = 0;
       value = 0
     }
  :: d_step { nempty(parts_moving[to]) && nempty(parts_posted[to]) -> take_part(); place = 0 }
  :: d_step {
       nempty(earlies[to]) && nfull(earlies_moving[to]) ->
       earlies[to]?_;
       earlies_moving[to]!early[PEER(to)];
       early_going[PEER(to)] = false;
       if
       :: nempty(earlies_posted[to]) -> take_early()
       :: empty(earlies_posted[to])
       fi
     }
  :: d_step { nempty(earlies_moving[to]) && nempty(earlies_posted[to]) -> take_early() }
  od
}

inline inside(id) {
  step_of[me * 2 + (met[me] & 1)] = id;
  met[me]++;
  met[PARTNER(me)] >= met[me];
  assert(step_of[PARTNER(me) * 2 + ((met[me] - 1) & 1)] == id) /* mismatch inside */
}

inline expect_letter(n) {
  letters_posted[me]!PLACE(n);
  letters_expected[me]++
}

/* The receive of the next call's envelope. The first call posts its own, too (init). */
inline begin() {
#if defined(ONE_ENVELOPE) || defined(LATE_LETTER)
  skip
#else
  d_step { expect_letter(count + 1) }
#endif
}

inline send_letter() {
  d_step {
    assert(letters_expected[PEER(me)] > letters_sent[me] || count == 0); /* expected */
    letters_sent[me]++;
    letters_moving[PEER(me)]!VALUE(op, kind, 0)
  }
}

/* read_envelopes, end_envelopes */
inline read_letter() {
  letter_in[me * 2 + PLACE(count)] != 0;
  d_step {
    alike = letter_in[me * 2 + PLACE(count)] == VALUE(op, kind, 0);
    letter_in[me * 2 + PLACE(count)] = 0;
#ifdef UNLIKE
    assert(alike == (op + 1 < OPS));
#else
    assert(alike); /* letter */
#endif
#ifdef ONE_ENVELOPE
    expect_letter(0);
#endif
    count++
  }
#ifdef LATE_LETTER
  ;
  d_step { expect_letter(count) }
#endif
}

inline send_part(c) {
  d_step {
    part[me * RING + (c) % RING] = VALUE(op, kind, c);
    part_going[me * RING + (c) % RING] = true;
    parts[PEER(me)]!((c) % RING)
  }
}

inline wait_part(c) {
  part_in[me * RING + (c) % RING] != 0;
  d_step {
    assert(part_in[me * RING + (c) % RING] == VALUE(op, kind, c)); /* data */
#ifndef POST_EARLY
    part_in[me * RING + (c) % RING] = 0
#endif
  }
}

inline expect_early() {
#ifdef ONE_MAIL
  parts_posted[me]!0
#else
  earlies_posted[me]!0
#endif
}

inline send_early() {
#ifdef ONE_MAIL
  send_part(0)
#else
  d_step {
    early[me] = VALUE(op, kind, 0);
    early_going[me] = true;
    earlies[PEER(me)]!0
  }
#endif
}

inline wait_early() {
#ifdef ONE_MAIL
  wait_part(0);
  !part_going[me * RING]
#else
  early_in[me] != 0;
  d_step {
    assert(early_in[me] == VALUE(op, kind, 0)); /* data */
    early_in[me] = 0
  }
  !early_going[me]
#endif
}

proctype Rank(byte me) {
  byte op, kind, count, turn, at;
  bool alike = true;

  do
  :: op < OPS ->
     kind = (op == 0 -> KIND0 : (op == 1 -> KIND1 : KIND2));
#ifdef UNLIKE
     if
     :: op + 1 == OPS -> kind = (me < 2 -> LONG : OTHER)
     :: else
     fi;
#endif
     call_of[me] = op * 4 + kind;
     if
     :: kind == SHORT ->
        if
        :: leads -> begin(); expect_early()
        :: else
        fi;
        inside(VALUE(op, SHORT, 0));
        if
        :: leads ->
           send_letter();
           send_early();
           read_letter();
           if
           :: !alike -> break
           :: else
           fi;
           wait_early()
        :: else
        fi;
#ifdef UNLIKE
        if
        :: op + 1 == OPS -> break /* its first rank has told it */
        :: else
        fi;
#endif
        inside(VALUE(op, SHORT, 1))
     :: kind == MEET ->
        inside(VALUE(op, MEET, 0));
        if
        :: leads -> begin(); send_letter(); read_letter()
        :: else
        fi;
        inside(VALUE(op, MEET, 1))
     :: kind == LONG || kind == LONGER ->
        begin();
        at = 0;
        do
        :: at < RING && at < CHUNKS -> parts_posted[me]!at; at++
        :: else -> break
        od;
        send_letter();
        turn = 0;
        do
        :: turn < CHUNKS + 2 ->
           if
           :: turn < CHUNKS ->
#ifdef NO_ORDER
              if
              :: !leads && turn == 1 -> inside(VALUE(op, LONG, 7))
              :: else -> inside(VALUE(op, LONG, turn))
              fi;
#else
              inside(VALUE(op, LONG, turn));
#endif
#ifdef NO_COMPARE
              send_part(turn);
#endif
              if
              :: turn == 0 ->
#ifdef UNLIKE
                 if
                 :: op + 1 == OPS && !leads -> goto ended /* its first rank has told it */
                 :: op + 1 < OPS || leads
                 fi;
#endif
                 read_letter();
                 if
                 :: !alike -> goto ended
                 :: else
                 fi
              :: else
              fi
#ifndef NO_COMPARE
              ;
              send_part(turn)
#endif
           :: else
           fi;
           if
           :: turn >= 1 && turn <= CHUNKS ->
              wait_part(turn - 1)
#ifdef POST_EARLY
              ;
              if
              :: turn + 2 < CHUNKS -> parts_posted[me]!((turn - 1) % RING)
              :: else
              fi
#endif
           :: else
           fi;
           if
           :: turn >= 2 ->
              inside(VALUE(op, LONG, turn - 2) + 100);
#ifdef POST_EARLY
              part_in[me * RING + (turn - 2) % RING] = 0;
#endif
#ifndef NO_SENT_WAIT
              !part_going[me * RING + (turn - 2) % RING];
#endif
#ifndef POST_EARLY
              if
              :: turn + 1 < CHUNKS -> parts_posted[me]!((turn - 2) % RING)
              :: else
              fi
#endif
           :: else
           fi;
           turn++
        :: else -> break
        od
     fi;
     op++
  :: else -> break
  od;
ended:
  skip
}

init {
  byte r;
  atomic {
    r = 0;
    do
    :: r < 4 ->
       letters_posted[r]!0;
       letters_expected[r] = 1;
       run Gloo(r);
       run Rank(r);
       r++
    :: else -> break
    od
  }
}
