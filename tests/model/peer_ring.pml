/* The ring of an ordered pair of ranks: csrc/engines/cpu/peer_ring.h, and what point_to_point.cpp does with
 * it. A sender announces MESSAGES messages in their order; those of the set LONGS go through the
 * slots, PIECES each, when they are granted. The receiver posts a receive for each in any order (a
 * tag of its own each; -DIN_TURN: one after the other), and reads announcements only while some
 * receive is without a message.
 *
 * Modelled: every word, plain memory behind it (torn while it is written), counters that wrap at
 * MODULUS, the places of the rings. A read of plain memory and the word that gives it back are two
 * steps, and so are a write and the word that publishes it.
 * Abstracted: a rank's looks come one after the other, so the model's words are sequentially
 * consistent; orders that are weakened are modelled by their effect, two steps in the wrong order.
 * Sleep is the other models' (doorbell.pml): here who can go on does, and who cannot is stuck.
 * Failures.
 *
 * Negative controls: -DSTAMP_FIRST, -DTAKEN_FIRST, -DFILLED_FIRST, -DDRAINED_FIRST (a word is published
 * before what it says is so), -DBLIND_POST, -DBLIND_FILL (nobody looks whether a place is free),
 * -DBLIND_GRANT (more grants than there are places), -DNO_STRAYS (a message that nobody wants yet keeps
 * those behind it), -DBARE_GRANTS (a grant's place says nothing of its turn). */
#ifndef MESSAGES
#define MESSAGES 4
#endif
#ifndef LONGS
#define LONGS 10 /* bits: messages 1 and 3 */
#endif
#ifndef PIECES
#define PIECES 3
#endif
#ifndef MODULUS
#define MODULUS 4
#endif
#ifndef FIRST
#define FIRST 0
#endif
#define CELLS 2
#define SLOTS 2
#define GRANTS 2
#define TORN 255
#define NONE 254

#define is_long(m) ((LONGS >> (m)) & 1)
#define up(n) (((n) + 1) % MODULUS)
#define distance(a, b) (((a) + MODULUS - (b)) % MODULUS)
#define content(m, piece) ((m) * PIECES + (piece) + 1)

/* The sender's words and memory. A stamp is NONE in fresh memory: no count has that value here. */
byte stamp[CELLS], cell[CELLS], filled, slot[SLOTS];
/* The receiver's. */
byte taken, grant_turn[GRANTS], grant_number[GRANTS], drained;

byte sent, received;

inline write(place, value) {
  place = TORN;
  place = value
}

proctype Sender() {
  byte next, posted = FIRST, granted, stream = NONE, piece;

  do
#ifdef BLIND_POST
  :: next < MESSAGES ->
#else
  :: next < MESSAGES && distance(posted, taken) < CELLS ->
#endif
#ifdef STAMP_FIRST
     stamp[posted % CELLS] = up(posted);
     write(cell[posted % CELLS], next);
#else
     write(cell[posted % CELLS], next);
     stamp[posted % CELLS] = up(posted);
#endif
     if
     :: !is_long(next) -> sent++
     :: is_long(next)
     fi;
     posted = up(posted);
     next++
#ifdef BARE_GRANTS
  :: stream == NONE && grant_turn[granted % GRANTS] != NONE ->
#else
  :: stream == NONE && grant_turn[granted % GRANTS] == up(granted) ->
#endif
     d_step {
       stream = grant_number[granted % GRANTS];
       granted = up(granted);
       piece = 0
     }
#ifdef BLIND_FILL
  :: stream != NONE ->
#else
  :: stream != NONE && distance(filled, drained) < SLOTS ->
#endif
#ifdef FILLED_FIRST
     filled = up(filled);
     write(slot[(filled + MODULUS - 1) % MODULUS % SLOTS], content(stream, piece));
#else
     write(slot[filled % SLOTS], content(stream, piece));
     filled = up(filled);
#endif
     piece++;
     if
     :: piece == PIECES -> stream = NONE; sent++
     :: else
     fi
  :: next == MESSAGES && sent == MESSAGES -> break
  od
}

proctype Receiver() {
  byte read = FIRST, number, m, seen, expected, granted, ended, piece, current = NONE;
  byte posted, strays; /* sets of messages */
  chan wanted = [MESSAGES] of { byte }; /* long messages with a receive, not granted yet */
  chan incoming = [MESSAGES] of { byte };

  do
#ifdef IN_TURN
  :: posted != (1 << MESSAGES) - 1 && expected == 0 ->
#else
  :: posted != (1 << MESSAGES) - 1 ->
#endif
     select(m : 0 .. MESSAGES - 1);
     if
     :: (posted >> m) & 1
     :: !((posted >> m) & 1) ->
        posted = posted | (1 << m);
        if
        :: !((strays >> m) & 1) -> expected++
        :: (strays >> m) & 1 && is_long(m) -> wanted!m
        :: (strays >> m) & 1 && !is_long(m) -> received++
        fi
     fi
#ifdef NO_STRAYS
  :: expected > 0 && stamp[read % CELLS] == up(read) && (posted >> number) & 1 ->
#else
  :: expected > 0 && stamp[read % CELLS] == up(read) ->
#endif
#ifdef TAKEN_FIRST
     taken = up(read);
     seen = cell[read % CELLS];
#else
     seen = cell[read % CELLS];
     taken = up(read);
#endif
     read = up(read);
     assert(seen == number); /* seen in order, whole */
     if
     :: !((posted >> number) & 1) -> strays = strays | (1 << number)
     :: (posted >> number) & 1 ->
        expected--;
        if
        :: is_long(number) -> wanted!number
        :: !is_long(number) -> received++
        fi
     fi;
     number++
#ifdef BLIND_GRANT
  :: nempty(wanted) ->
#else
  :: nempty(wanted) && distance(granted, ended) < GRANTS ->
#endif
     wanted?m;
     d_step { /* one word */
       grant_number[granted % GRANTS] = m;
       grant_turn[granted % GRANTS] = up(granted);
       granted = up(granted)
     };
     incoming!m
  :: current == NONE && nempty(incoming) -> incoming?current; piece = 0
  :: current != NONE && filled != drained ->
#ifdef DRAINED_FIRST
     drained = up(drained);
     seen = slot[(drained + MODULUS - 1) % MODULUS % SLOTS];
#else
     seen = slot[drained % SLOTS];
     drained = up(drained);
#endif
     assert(seen == content(current, piece)); /* the right piece, whole */
     piece++;
     if
     :: piece == PIECES -> current = NONE; ended = up(ended); received++
     :: else
     fi
  :: received == MESSAGES -> break
  od
}

init {
  byte i = 0;
  atomic {
    taken = FIRST;
    do
    :: i < CELLS -> stamp[i] = NONE; i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < GRANTS -> grant_turn[i] = NONE; i++
    :: else -> break
    od;
    run Sender();
    run Receiver()
  }
}
