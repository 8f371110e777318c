/* What the ranks do in the steps of an operation: csrc/coll/schedule.h, all_reduce.h, broadcast.h,
 * all_gather.h, all_reduce_direct.h, fused_all_reduce.h, all_to_all_v.h. Included by
 * flag_protocol.pml, for its names.
 *
 * Modelled: which slot a step writes and reads, and for whom a step waits. A slot holds a tag that
 * tells operation and block. While its owner writes, it is TORN: from the moment at which the step
 * may begin until the publication that says it is there. So whoever reads too early or too late
 * finds another tag than it wants. A rank reads at the last moment of a step, and a slot is torn at
 * the first: the worst of all orders within a step, so this one is enough.
 * FUSED lays its slots out in its own way, which may be any: its first write to a slot tears all
 * stage and result slots of its rank, and so does the first write of the operation behind it.
 * EXCHANGE has as many steps as the ranks agree on in step 1, from the tables that they wrote in
 * step 0. A rank's stream has any number of blocks up to MOST_BLOCKS, or 0: then it is in the
 * payload slot. All of a stream is for every other rank: who reads less may find less torn.
 * Abstracted: the bytes, the sums, the spans of a slot. A barrier is ONE without payload; broadcast
 * and all_gather in one shot are ONE with fewer readers or other outputs. */

#define ONE 0    /* AllReduceOneShot */
#define TWO 1    /* AllReduceTwoShot */
#define CAST 2   /* BroadcastPipelined; the root is another rank in each operation */
#define GATHER 3 /* AllGatherPipelined */
#define DIRECT 4 /* AllReduceTwoShot that turns to AllReduceDirect once the headers are read */
#define FUSED 5  /* FusedAllReduce */
#define EXCHANGE 6 /* AllToAllV */

#define kind_of(op) ((op) == 0 -> KIND0 : ((op) == 1 -> KIND1 : ((op) == 2 -> KIND2 : KIND3)))
#define root_of(op) ((op) % N)
#define steps \
  (kind == ONE -> 2 : (two_shot -> BLOCKS + 3 - early : (kind == EXCHANGE -> agreed : BLOCKS) + 2))
#define two_shot (kind == TWO || kind == DIRECT || kind == FUSED)

/* The kind -DEARLY does in each step what belongs to the next: it writes a slot in step 0. */
#ifdef EARLY
#define early (kind == EARLY -> 1 : 0)
#else
#define early 0
#endif
#define turn (k + early) /* which says what a step does */

#define TORN 0
#define tag(op, block) ((op) * 4 + (block) + 1)
#define at(rank, number, slots) ((rank) * 2 + (number) % (slots))

/* For whom step k waits: all, but readers of a broadcast for its root alone from step 2 on. */
#ifdef WAIT_SOME
#define in_wait_set(p) ((p) != N - 1)
#elif defined(MISSING_WAIT)
#define in_wait_set(p) (k != MISSING_WAIT)
#elif defined(WAIT_FOR_NEXT)
#define in_wait_set(p) (kind != EXCHANGE || k != 1 || (p) == (me + 1) % N)
#define overlooked(p) (!in_wait_set(p)) /* its header is not compared: that would tell at once */
#else
#define in_wait_set(p) (kind != CAST || k <= 1 || me == root_of(op) || (p) == root_of(op))
#endif
#ifndef overlooked
#define overlooked(p) false
#endif

#define table_of(rank) table[at(rank, op, TABLE_SLOTS)]
#define is_table(seen) ((seen) != TORN && ((seen) - 1) / 4 == op)
#define blocks_of(rank) (kind == EXCHANGE -> (table_of(rank) + 3) % 4 : BLOCKS) /* of its tag */
#define pays(blocks) (kind == ONE || (kind == EXCHANGE && (blocks) == 0))
#define stages \
  (kind != ONE && turn >= 1 && turn - 1 < (kind == EXCHANGE -> own : BLOCKS) && \
   (kind != CAST || me == root_of(op)))
#define reduces (two_shot && turn >= 2 && turn - 2 < BLOCKS)
#define reads_stage(blocks) (kind != ONE && turn >= 2 && turn - 2 < (blocks))
#define reads_result (two_shot && turn >= 3)
#define lays_out \
  (kind != ONE && turn == 1 && (kind == FUSED || (op > 0 && kind_of(op - 1) == FUSED)))

inline tear() {
  if
  :: k == 0 -> header[at(me, op, HEADER_SLOTS)] = TORN;
     if :: kind == EXCHANGE -> table_of(me) = TORN :: else fi;
     if :: pays(own) -> payload[at(me, op, PAYLOAD_SLOTS)] = TORN :: else fi
  :: else
  fi;
  if
  :: lays_out ->
     for (q : 0 .. 1) { stage[me * 2 + q] = TORN; result[me * 2 + q] = TORN }
     q = 0
  :: else
  fi;
  if :: stages -> stage[at(me, turn - 1, STAGE_SLOTS)] = TORN :: else fi;
  if :: reduces -> result[at(me, turn - 2, RESULT_SLOTS)] = TORN :: else fi
}

/* What step k has written is there for everybody. */
inline flush() {
  if
  :: k == 0 -> header[at(me, op, HEADER_SLOTS)] = tag(op, (is_odd -> 1 : 0) + (ordinary -> 2 : 0));
     if :: kind == EXCHANGE -> table_of(me) = tag(op, own) :: else fi;
     if :: pays(own) -> payload[at(me, op, PAYLOAD_SLOTS)] = tag(op, 0) :: else fi
  :: else
  fi;
  if :: stages -> stage[at(me, turn - 1, STAGE_SLOTS)] = tag(op, turn - 1) :: else fi;
  if :: reduces -> result[at(me, turn - 2, RESULT_SLOTS)] = tag(op, turn - 2) :: else fi
}

/* Of a header: its rank called something else; its tensor lies where peers cannot reach it. */
#define odd_bit(header) (((header) - 1) % 2)
#define ordinary_bit(header) (((header) - 1) / 2 % 2)

/* The tensors of an operation in place (DIRECT): of each rank, the slice of each rank. */
#define YOURS 0 /* its rank's user may do with it what he wants, and does */
#define INPUT 1
#define SUM 2   /* of every rank's input */
#define WRONG 3 /* a sum of something else */
#define slice(rank, part) tensor[(rank) * N + (part)]

inline read() {
  for (q : 0 .. N - 1) {
    if
    :: q == me
    :: else ->
       assert(kind != EXCHANGE || k == 0 || is_table(table_of(q)));
       sent = blocks_of(q);
       assert(!(k == 1 && pays(sent)) || payload[at(q, op, PAYLOAD_SLOTS)] == tag(op, 0));
       assert(!reads_stage(sent) || (kind == CAST && q != root_of(op)) ||
              stage[at(q, turn - 2, STAGE_SLOTS)] == tag(op, turn - 2));
       assert(!reads_result || result[at(q, turn - 3, RESULT_SLOTS)] == tag(op, turn - 3));
    fi
  }
  q = 0
}

/* AllToAllV::read_tables: the most blocks of any rank, hence how many steps there are. The tables
 * are read here first thing in step 1, and by read() last thing in every step. */
inline read_tables() {
  agreed = own;
  for (q : 0 .. N - 1) {
    if
    :: q == me
    :: else ->
       assert(is_table(table_of(q)));
#ifndef OWN_BLOCKS
       agreed = (blocks_of(q) > agreed -> blocks_of(q) : agreed)
#endif
    fi
  }
  q = 0
}

/* Operation::read_headers. A header is never another operation's: that would be a defect. */
inline read_headers() {
  differs = false;
  in_place = kind == DIRECT && !ordinary;
  for (q : 0 .. N - 1) {
    if
    :: q == me || overlooked(q)
    :: else ->
       seen = header[at(q, op, HEADER_SLOTS)];
       assert(seen != TORN && (seen - 1) / 4 == op);
#ifndef NO_HEADER_CHECK
       differs = differs || odd_bit(seen) != is_odd;
#endif
       in_place = in_place && !ordinary_bit(seen)
    fi
  }
  q = 0; seen = 0
}

inline set_tensor(what) {
  for (q : 0 .. N - 1) { slice(me, q) = what }
  q = 0
}

/* Reads one slice of all tensors, and writes it into all. Nobody writes into the tensor of a rank
 * for which the operation has ended well. That of a rank for which it failed may be written: its
 * memory is in quarantine, its content undefined. */
inline reduce_slice() {
  clean = true;
  for (q : 0 .. N - 1) { clean = clean && slice(q, me) == INPUT }
  for (q : 0 .. N - 1) {
    assert(well[q] <= op);
    slice(q, me) = (clean -> SUM : WRONG)
  }
  q = 0;
  clean = false
}

inline check_tensor() {
  for (q : 0 .. N - 1) { assert(slice(me, q) == SUM) }
  q = 0
}

/* After its own reading and before its publication, or its end, a rank looks whose user may have had the tensor
 * back meanwhile. A death is no reason: who is dead writes nothing. */
inline find_quitters() {
  for (q : 0 .. N - 1) {
    if
    :: q != me && ((poison[q] != 0 && poison[q] - 1 <= op) ||
                   (leave_notice[q] != 0 && leave_notice[q] - 1 <= op)) -> stuck = q + 1
    :: else
    fi
  }
  q = 0
}
