/* Collectives of real helpers: what each member gets, held against what it should. */
#include "broker.h"

#include "base/error_detail.h"
#include "ipc/frame.h"

enum { HELPERS = 4, ROUNDS = HARNESS_SANITIZED ? 60 : 1500 };

/* The parameter block: what is to be done, and for each rank of the gang where its arrays lie. */
typedef struct task {
  shm_collective_t what[HELPERS];
  int size;           /* of the gang */
  int times;          /* the collective is done so often, under rising numbers */
  int split;          /* started, another one done, and waited for */
  int commits;
  int dies, stops;    /* 1 + rank: before that one */
  int at;
  int dies_committed; /* 1 + rank: once it is decided */
  int leaves_out;     /* 1 + rank: does not take part */
  int differs;        /* 1 + rank: asks for another type */
  int fails;          /* 1 + rank: gives the gang up */
  int statuses[HELPERS], commit_statuses[HELPERS], came[HELPERS], states[HELPERS];
  char details[HELPERS][256];
  uint64_t in[HELPERS], out[HELPERS], bytes[HELPERS];
} task_t;

static const char *array(const task_t *task, uint64_t offset) {
  return offset != 0 ? (const char *)task + offset : NULL;
}

static int do_once(task_t *task, int rank, uint32_t id) {
  shm_collective_t what = task->what[rank];
  what.id = id;
  if (task->differs == rank + 1) what.dtype = SHM_FLOAT64;
  const char *in = array(task, task->in[rank]);
  char *out = (char *)(uintptr_t)array(task, task->out[rank]);
  if (!task->split) return shm_gang_collective(&what, in, out);
  int handle = shm_gang_start(&what, in, out);
  if (handle < 0) return handle;
  shm_collective_t barrier = {.id = id + 1, .kind = SHM_BARRIER};
  int status = shm_gang_collective(&barrier, NULL, NULL);
  return status == SHM_OK ? shm_gang_wait(handle, id + 2) : status;
}

static void take_part(void *params) {
  task_t *task = params;
  int rank = shm_gang_rank(), status = SHM_OK;
  __atomic_add_fetch(&task->came[rank], 1, __ATOMIC_RELAXED);
  CHECK_EQ(shm_gang_size(), task->size);
  for (int time = 0; time < task->times && status == SHM_OK; time++) {
    if (time == task->at && task->dies == rank + 1) raise(SIGKILL);
    if (time == task->at && task->stops == rank + 1) raise(SIGSTOP);
    if (time == task->at && task->leaves_out == rank + 1) break;
    if (time == task->at && task->fails == rank + 1) status = shm_gang_abort();
    if (status == SHM_OK) status = do_once(task, rank, 1 + 4 * (uint32_t)time);
  }
  task->statuses[rank] = status;
  if (status != SHM_OK) snprintf(task->details[rank], sizeof task->details[rank], "%s", shm_error_detail());
  if (task->commits && status == SHM_OK) task->commit_statuses[rank] = shm_gang_commit();
  if (task->dies_committed == rank + 1) raise(SIGKILL);
  task->states[rank] = shm_gang_state();
}

static void be_impatient(void *params) { take_part(params); }

static shm_reply_t reply;
static shm_func_t asked = take_part;
static shm_call_config_t gang_of(uint64_t mask) {
  return (shm_call_config_t){.function = (uint64_t)(uintptr_t)asked, .placement = mask, .rows = 1, .gang = 1};
}
static int ask(task_t *task, uint64_t mask) {
  shm_call_config_t call_config = gang_of(mask);
  return shm_port_call(&call_config, (uint64_t)(uintptr_t)task, 0, &reply);
}

static uint64_t dice = 1;
static uint64_t roll(uint64_t sides) {
  dice ^= dice << 13;
  dice ^= dice >> 7;
  dice ^= dice << 17;
  return (dice >> 11) % sides;
}

/* ---- a task with its arrays, in one block of the arena ---- */

static size_t used;

static uint64_t place(size_t bytes) {
  uint64_t at = used;
  used += (bytes + 63) & ~(size_t)63;
  return at;
}

static void open_task(task_t *task, uint64_t mask) {
  *task = (task_t){.times = 1};
  task->size = __builtin_popcountll(mask);
  used = (sizeof *task + 63) & ~(size_t)63;
}

/* Element i of what rank has: small, so that sums are exact in every type, and told apart. */
static int64_t value(int rank, uint64_t i) { return (int64_t)((i * 7 + (uint64_t)rank * 31) % 23) - 11; }

static void put(int dtype, char *at, uint64_t i, int64_t number) {
  switch (dtype) {
    case SHM_FLOAT32: ((float *)(void *)at)[i] = (float)number; break;
    case SHM_FLOAT64: ((double *)(void *)at)[i] = (double)number; break;
    case SHM_INT64: ((int64_t *)(void *)at)[i] = number; break;
    default: ((int32_t *)(void *)at)[i] = (int32_t)number; break;
  }
}
static int64_t look_up(int dtype, const char *at, uint64_t i) {
  switch (dtype) {
    case SHM_FLOAT32: return (int64_t)((const float *)(const void *)at)[i];
    case SHM_FLOAT64: return (int64_t)((const double *)(const void *)at)[i];
    case SHM_INT64: return ((const int64_t *)(const void *)at)[i];
    default: return ((const int32_t *)(const void *)at)[i];
  }
}

static int64_t reduced(int op, const int ranks[], int count, uint64_t i) {
  int64_t result = value(ranks[0], i);
  for (int r = 1; r < count; r++) {
    int64_t x = value(ranks[r], i);
    if (op == SHM_REDUCE_SUM) result += x;
    else if (op == SHM_REDUCE_MAX) result = result > x ? result : x;
    else result = result < x ? result : x;
  }
  return result;
}

static void fill(task_t *task, int rank, uint64_t count) {
  task->in[rank] = place(count * 8);
  for (uint64_t i = 0; i < count; i++) {
    put(task->what[rank].dtype, (char *)task + task->in[rank], i, value(rank, i));
  }
}
static void room(task_t *task, int rank, uint64_t count) {
  task->out[rank] = place(count * 8);
  memset((char *)task + task->out[rank], 0x5a, count * 8);
}
static void expect(const task_t *task, int rank, uint64_t at, int64_t wanted) {
  const shm_collective_t *what = &task->what[rank];
  int64_t got = look_up(what->dtype, array(task, task->out[rank]), at);
  if (got != wanted)
    harness_fail(__FILE__, __LINE__,
                 "kind %d, rank %d of %d, dtype %d, algorithm %d, split %d: element %llu is %lld, expected %lld",
                 what->kind, rank, task->size, what->dtype, what->algorithm, task->split,
                 (unsigned long long)at, (long long)got, (long long)wanted);
}

static uint64_t some(void) {
  static const uint64_t sizes[] = {0, 1, 2, 3, 100, 1000, 5000, 20000};
  return roll(2) == 0 ? sizes[roll(8)] : roll(9000);
}

static task_t *task_block(void) {
  static task_t *block;
  if (block == NULL) block = shm_malloc(12 * MIB);
  CHECK(block != NULL);
  return block;
}

typedef struct group {
  int count, ranks[HELPERS], root; /* root: an index */
  uint64_t n, all, counts[HELPERS], sent[HELPERS][HELPERS];
} group_t;

/* What each member of a group is asked for, and its arrays. */
static void prepare(task_t *task, group_t *group, const shm_collective_t *common) {
  group->n = some();
  group->root = (int)roll((uint64_t)group->count);
  group->all = 0;
  for (int i = 0; i < group->count; i++) {
    group->all += group->counts[i] = some() / (uint64_t)group->count;
    for (int k = 0; k < group->count; k++) group->sent[i][k] = some() / (uint64_t)group->count;
  }
  for (int i = 0; i < group->count; i++) {
    int rank = group->ranks[i], kind = common->kind, is_root = i == group->root;
    shm_collective_t *what = &task->what[rank];
    *what = *common;
    what->root = (uint8_t)group->root;
    what->size = (uint8_t)group->count;
    uint64_t sent = 0, received = 0;
    for (int k = 0; k < group->count; k++) {
      what->group[k] = (uint8_t)group->ranks[k];
      what->counts[k] = kind == SHM_ALL_TO_ALL ? group->sent[i][k] : group->counts[k];
      what->received[k] = group->sent[k][i];
      sent += group->sent[i][k];
      received += group->sent[k][i];
    }
    if (kind == SHM_ALL_REDUCE || kind == SHM_BROADCAST || kind == SHM_SEND) what->counts[0] = group->n;
    if (kind == SHM_SEND && !is_root) what->kind = SHM_RECV;
    switch (kind) {
      case SHM_BARRIER: break;
      case SHM_ALL_REDUCE:
        fill(task, rank, group->n);
        if (!task->split && task->times == 1 && roll(2) == 0) task->out[rank] = task->in[rank];
        else room(task, rank, group->n);
        break;
      case SHM_ALL_TO_ALL:
        fill(task, rank, sent);
        room(task, rank, received);
        break;
      case SHM_ALL_GATHER:
      case SHM_GATHER:
        fill(task, rank, group->counts[i]);
        if (kind == SHM_ALL_GATHER || is_root) room(task, rank, group->all);
        break;
      case SHM_REDUCE_SCATTER:
      case SHM_SCATTER:
        if (kind == SHM_REDUCE_SCATTER || is_root) fill(task, rank, group->all);
        room(task, rank, group->counts[i]);
        break;
      default:
        if (is_root) fill(task, rank, group->n);
        else room(task, rank, group->n);
    }
  }
}

static void expect_all(const task_t *task, const group_t *group, const shm_collective_t *common) {
  const int *ranks = group->ranks;
  uint64_t begin = 0;
  for (int i = 0; i < group->count; begin += group->counts[i++]) {
    int rank = ranks[i], root = ranks[group->root];
    uint64_t k = 0;
    CHECK_EQ(task->statuses[rank], SHM_OK);
    switch (common->kind) {
      case SHM_ALL_REDUCE:
        for (; k < group->n; k++) expect(task, rank, k, reduced(common->reduction, ranks, group->count, k));
        break;
      case SHM_REDUCE_SCATTER:
        for (; k < group->counts[i]; k++) {
          expect(task, rank, k, reduced(common->reduction, ranks, group->count, begin + k));
        }
        break;
      case SHM_SCATTER:
        for (; k < group->counts[i]; k++) expect(task, rank, k, value(root, begin + k));
        break;
      case SHM_ALL_GATHER:
      case SHM_GATHER:
        for (int from = 0; from < group->count && (common->kind == SHM_ALL_GATHER || rank == root); from++) {
          for (uint64_t own = 0; own < group->counts[from]; own++) expect(task, rank, k++, value(ranks[from], own));
        }
        break;
      case SHM_ALL_TO_ALL:
        for (int from = 0; from < group->count; from++) {
          uint64_t at = 0;
          for (int to = 0; to < i; to++) at += group->sent[from][to];
          for (uint64_t own = 0; own < group->sent[from][i]; own++) {
            expect(task, rank, k++, value(ranks[from], at + own));
          }
        }
        break;
      case SHM_BROADCAST:
      case SHM_SEND:
        for (; k < group->n && rank != root; k++) expect(task, rank, k, value(root, k));
        break;
      default: break;
    }
  }
}

/* The members in one group or in two, which do the same at the same time. */
static void random_task(void) {
  static const uint64_t masks[] = {0x3, 0x7, 0xf, 0x5, 0xe, 0x1, 0xf, 0x6};
  static const uint8_t types[] = {SHM_INT32, SHM_FLOAT32, SHM_FLOAT64, SHM_INT64};
  static const uint8_t operations[] = {SHM_REDUCE_SUM, SHM_REDUCE_MAX, SHM_REDUCE_MIN};
  uint64_t mask = masks[roll(8)];
  task_t *task = task_block();
  shm_collective_t common = {.kind = (uint8_t)roll(SHM_RECV), .dtype = types[roll(4)],
                             .reduction = operations[roll(3)], .algorithm = (uint8_t)roll(SHM_ALGORITHMS)};
  group_t groups[2] = {{0}, {0}};
  open_task(task, mask);
  task->times = 1 + (int)roll(3);
  task->commits = roll(2) == 0;
  task->split = roll(3) == 0;
  int two = roll(2) == 0 && common.kind != SHM_SEND, turned = roll(2) == 0;
  for (int i = 0; i < task->size; i++) {
    int rank = turned ? task->size - 1 - i : i;
    group_t *group = &groups[two ? roll(2) : 0];
    if (common.kind == SHM_SEND && groups[0].count == 2) group = &groups[1];
    group->ranks[group->count++] = rank;
  }
  if (common.kind == SHM_SEND && (groups[0].count < 2 || groups[1].count == 1)) common.kind = SHM_BARRIER;
  for (int g = 0; g < 2; g++) {
    if (groups[g].count > 0) prepare(task, &groups[g], &common);
  }
  CHECK(used <= 12 * MIB);
  int status = ask(task, mask);
  if (status != SHM_OK) {
    for (int rank = 0; rank < task->size; rank++) printf("rank %d: %d %s\n", rank, task->statuses[rank], task->details[rank]);
  }
  CHECK_EQ(status, SHM_OK);
  CHECK_EQ(reply.gang, SHM_GANG_COMMITTED);
  for (int rank = 0; rank < task->size; rank++) {
    if (task->commits) CHECK_EQ(task->states[rank], SHM_GANG_COMMITTED);
  }
  for (int g = 0; g < 2; g++) expect_all(task, &groups[g], &common);
}

static int random_tasks(int child) {
  dice = (uint64_t)child * 7919 + 88172645463325252u;
  const char *seed = getenv("SHM_TEST_SEED");
  if (seed != NULL) dice += strtoull(seed, NULL, 10);
  for (int round = 0; round < ROUNDS; round++) random_task();
  return 0;
}

static void open_gangs(int children, size_t scratch_bytes) {
  broker_open(children, HELPERS);
  CHECK_EQ(shm_register(take_part, "take_part", sizeof(task_t)), SHM_OK);
  shm_function_config_t impatient = {.name = "impatient", .func = be_impatient,
                                     .params_size = sizeof(task_t), .hang_after_ns = 300000000};
  CHECK_EQ(shm_register_function(&impatient, NULL), SHM_OK);
  config.arena_bytes = 16 * MIB;
  config.scratch_bytes = scratch_bytes;
}

TEST_WITHIN(every_collective_gives_every_member_what_it_should, 60) {
  open_gangs(1, 4 * MIB);
  launch_well(random_tasks);
}

TEST_WITHIN(and_in_many_small_pieces_through_small_regions, 60) {
  open_gangs(1, 16384);
  launch_well(random_tasks);
}

TEST_WITHIN(and_of_several_children_at_once, 60) {
  open_gangs(3, 65536);
  launch_well(random_tasks);
}

/* ---- members that die, stop, fail or disagree ---- */

/* Everybody does the same, some times, on n elements. */
static task_t *plain_task(int kind, uint64_t mask, uint64_t n, int times) {
  task_t *task = task_block();
  open_task(task, mask);
  task->times = times;
  for (int rank = 0; rank < task->size; rank++) {
    shm_collective_t *what = &task->what[rank];
    *what = (shm_collective_t){.kind = (uint8_t)kind, .dtype = SHM_INT32};
    for (int k = 0; k < task->size; k++) what->counts[k] = what->received[k] = n;
    fill(task, rank, n * (uint64_t)task->size);
    room(task, rank, n * (uint64_t)task->size);
  }
  return task;
}

static shm_helper_stats_t helper_of(int helper) {
  shm_helper_stats_t stats;
  CHECK_EQ(shm_get_helper_stats(helper, &stats), SHM_OK);
  return stats;
}

static void expect_gangs_work(uint64_t mask) {
  task_t *task = plain_task(SHM_ALL_REDUCE, mask, 1000, 1);
  CHECK_EQ(ask(task, mask), SHM_OK);
  CHECK_EQ(reply.gang, SHM_GANG_COMMITTED);
  for (int rank = 0; rank < task->size; rank++) {
    int all[HELPERS] = {0, 1, 2, 3};
    for (uint64_t k = 0; k < 1000; k++) expect(task, rank, k, reduced(SHM_REDUCE_SUM, all, task->size, k));
  }
}

static int deaths_in_collectives(int child) {
  (void)child;
  for (int kind = 0; kind < SHM_SEND; kind++) {
    for (int victim = 0; victim < 3; victim += 2) {
      for (int split = 0; split < 2; split++) {
        static const uint64_t mask = 0xb; /* rank 2 is helper 3 */
        task_t *task = plain_task(kind, mask, 20000, 3);
        task->dies = victim + 1;
        task->at = 1 + split;
        task->split = split;
        CHECK_EQ(ask(task, mask), SHM_EHELPER_DIED);
        CHECK_EQ(reply.helper, victim == 2 ? 3 : 0);
        CHECK_EQ(reply.gang, SHM_GANG_ABORTED);
        for (int rank = 0; rank < 3; rank++) {
          /* Who needs nothing of the dead one hears of it at the end. */
          if (rank != victim) CHECK(task->statuses[rank] == SHM_EABORTED || task->states[rank] == SHM_GANG_ABORTED);
          CHECK(task->came[rank] <= 1);
        }
        expect_gangs_work(mask);
      }
    }
  }
  CHECK_EQ(helper_of(1).deaths + helper_of(2).deaths, 0);
  return 0;
}

TEST_WITHIN(a_member_killed_in_any_collective_ends_the_gang_and_nobody_waits_for_it, 60) {
  open_gangs(1, 65536);
  config.max_deaths = 1000;
  config.death_window_ns = 1;
  launch_well(deaths_in_collectives);
}

static int deaths_about_commits(int child) {
  (void)child;
  task_t *task = plain_task(SHM_BARRIER, 0xf, 0, 2);
  task->commits = 1;
  task->dies = 3; /* before it arrives: nobody commits */
  task->at = 1;
  task->leaves_out = 1; /* this one waits in its commit by then */
  CHECK_EQ(ask(task, 0xf), SHM_EHELPER_DIED);
  CHECK_EQ(reply.gang, SHM_GANG_ABORTED);
  CHECK_EQ(reply.helper, 2);
  /* It may have heard of the death before it came to that. */
  CHECK(task->statuses[0] == SHM_EABORTED || task->commit_statuses[0] == SHM_EABORTED);
  task = plain_task(SHM_BARRIER, 0xf, 0, 1);
  task->commits = 1;
  task->dies_committed = 2;
  CHECK_EQ(ask(task, 0xf), SHM_EHELPER_DIED);
  CHECK_EQ(reply.gang, SHM_GANG_COMMITTED); /* it stands, and the caller is told both */
  CHECK_EQ(reply.helper, 1);
  for (int rank = 0; rank < 4; rank++) CHECK_EQ(task->commit_statuses[rank], SHM_OK);
  expect_gangs_work(0xf);
  return 0;
}

TEST(a_gang_stands_once_all_have_arrived_whoever_dies_then) {
  open_gangs(1, 65536);
  launch_well(deaths_about_commits);
}

static int stopped_member(int child) {
  (void)child;
  asked = be_impatient;
  for (int victim = 1; victim < 3; victim++) {
    uint32_t generations[3];
    for (int h = 0; h < 3; h++) generations[h] = helper_of(h).generation;
    task_t *task = plain_task(SHM_ALL_REDUCE, 0x7, 5000, 3);
    task->stops = victim + 1;
    task->at = 1;
    CHECK_EQ(ask(task, 0x7), SHM_EHELPER_DIED);
    CHECK_EQ(reply.helper, victim);
    for (int h = 0; h < 3; h++) {
      if (h != victim) CHECK_EQ(task->statuses[h], SHM_EABORTED);
      AWAIT(helper_of(h).generation == generations[h] + (h == victim)); /* who waited is not to blame */
    }
    expect_gangs_work(0x7);
  }
  shm_broker_stats_t stats;
  CHECK_EQ(shm_get_broker_stats(&stats), SHM_OK);
  CHECK_EQ(stats.helper_hangs, 2);
  return 0;
}

TEST_WITHIN(of_a_gang_that_hangs_the_member_that_stopped_is_ended_and_no_other, 30) {
  open_gangs(1, 65536);
  launch_well(stopped_member);
}

static int disagreements(int child) {
  (void)child;
  task_t *task = plain_task(SHM_ALL_REDUCE, 0x7, 100, 3);
  task->differs = 2; /* doubles among integers */
  task->at = 1;
  CHECK_EQ(ask(task, 0x7), SHM_EABORTED);
  CHECK_EQ(reply.value, SHM_GANG_MISMATCH);
  int told = 0;
  for (int rank = 0; rank < 3; rank++) {
    told += task->statuses[rank] == SHM_EBAD_GANG && strstr(task->details[rank], "float64") != NULL &&
            strstr(task->details[rank], "int32") != NULL && reply.helper == rank;
  }
  CHECK(told >= 1); /* who found it says what differs, and is named */
  task = plain_task(SHM_ALL_GATHER, 0x7, 100, 3);
  task->leaves_out = 1; /* it ends well, without the others */
  task->at = 1;
  CHECK_EQ(ask(task, 0x7), SHM_EABORTED);
  CHECK_EQ(reply.value, SHM_GANG_MISMATCH);
  task = plain_task(SHM_ALL_GATHER, 0x7, 100, 3);
  task->what[1].counts[0] = 50;
  CHECK_EQ(ask(task, 0x7), SHM_EABORTED);
  CHECK_EQ(reply.value, SHM_GANG_MISMATCH);
  task = plain_task(SHM_ALL_GATHER, 0x7, 100, 3);
  task->what[2].size = 2; /* two of them mean another group */
  task->what[2].group[0] = 1, task->what[2].group[1] = 2;
  CHECK_EQ(ask(task, 0x7), SHM_EABORTED);
  CHECK_EQ(reply.value, SHM_GANG_MISMATCH);
  task = plain_task(SHM_ALL_GATHER, 0x7, 100, 2);
  task->fails = 2;
  CHECK_EQ(ask(task, 0x7), SHM_EABORTED);
  CHECK_EQ(reply.value, SHM_GANG_MEMBER_FAILED);
  CHECK_EQ(reply.helper, 1);
  task = plain_task(SHM_SEND, 0x3, 100, 1); /* both receive, and nobody sends */
  for (int rank = 0; rank < 2; rank++) {
    task->what[rank].kind = SHM_RECV;
    task->what[rank].root = (uint8_t)(1 - rank);
  }
  CHECK_EQ(ask(task, 0x3), SHM_EABORTED);
  CHECK_EQ(reply.value, SHM_GANG_STUCK);
  CHECK_EQ(reply.helper, SHM_NO_HELPER);
  expect_gangs_work(0x7);
  shm_broker_stats_t stats;
  CHECK_EQ(shm_get_broker_stats(&stats), SHM_OK);
  CHECK_EQ(stats.helper_deaths, 0);
  return 0;
}

TEST_WITHIN(members_that_disagree_are_told_what_differs_and_none_waits_for_ever, 30) {
  open_gangs(1, 65536);
  launch_well(disagreements);
}

static int refusals(int child) {
  (void)child;
  task_t *task;
#define REFUSED(spoil, says)                                                              \
  task = plain_task(SHM_ALL_REDUCE, 0x3, 100, 1);                                          \
  for (int rank = 0; rank < 2; rank++) {                                                   \
    shm_collective_t *what = &task->what[rank];                                            \
    spoil;                                                                                 \
  }                                                                                        \
  CHECK_EQ(ask(task, 0x3), SHM_OK); /* C functions fail by what they write */              \
  for (int rank = 0; rank < 2; rank++) {                                                   \
    CHECK_EQ(task->statuses[rank], SHM_EBAD_GANG);                                         \
    if (strstr(task->details[rank], says) == NULL)                                         \
      harness_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", task->details[rank], says); \
  }
  REFUSED(what->reduction = SHM_REDUCE_MEAN, "a mean needs floats")
  REFUSED(what->dtype = SHM_BYTES, "no such reduction")
  REFUSED(what->kind = 99, "no such collective")
  REFUSED((what->size = 2, what->group[0] = what->group[1] = (uint8_t)rank), "names a member twice")
  REFUSED((what->size = 2, what->group[1] = 7), "a rank that the gang does not have")
  REFUSED((what->size = 1, what->group[0] = (uint8_t)(1 - rank)), "this member is not in its group")
  REFUSED(what->root = 5, "its root is not in its group")
  REFUSED((what->kind = SHM_RECV, what->root = (uint8_t)rank), "who sends is its root")
  return 0;
}

TEST(what_makes_no_sense_is_refused_in_a_sentence) {
  open_gangs(1, 65536);
  launch_well(refusals);
}

static void refused(int status, const char *says) {
  CHECK_EQ(status, SHM_EBAD_GANG);
  if (strstr(shm_error_detail(), says) == NULL)
    harness_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", shm_error_detail(), says);
  shmi_error_detail_set("%s", "");
}

/* What a function asks for at a time that is none for it: alone, or when its gang has committed. */
static void fn_out_of_turn(void *params) {
  task_t *task = params;
  int value = 5, got = 0, size = shm_gang_size();
  shm_collective_t sum = {.id = 1, .kind = SHM_ALL_REDUCE, .dtype = SHM_INT32, .counts = {1, 1}};
  const char *says = "no call on several helpers runs here";
  if (size > 0) {
    says = "the call has committed: collectives come before that";
    CHECK(shm_gang_epoch() != 0);
    CHECK_EQ(shm_gang_commit(), SHM_OK);
  } else {
    CHECK_EQ(shm_gang_rank(), SHM_EBAD_GANG);
    CHECK_EQ(size, SHM_EBAD_GANG);
    CHECK_EQ(shm_gang_epoch(), 0);
  }
  refused(shm_gang_collective(&sum, &value, &got), says);
  refused(shm_gang_start(&sum, &value, &got), says);
  refused(shm_gang_commit(), says);
  refused(shm_gang_abort(), says);
  task->came[size > 0 ? shm_gang_rank() : 0] = 1;
}

/* One starts more than it may, and waits for what it has not started. */
static void fn_starts_many(void *params) {
  task_t *task = params;
  int value = 5, got = 0, handle, count = 0;
  shm_collective_t own = {.kind = SHM_ALL_REDUCE, .dtype = SHM_INT32, .counts = {1}, .size = 1};
  own.group[0] = (uint8_t)shm_gang_rank();
  for (own.id = 1; (handle = shm_gang_start(&own, &value, &got)) >= 0; own.id++) {
    CHECK_EQ(handle, count++);
  }
  refused(handle, "64 collectives are started and not waited for: wait for one");
  CHECK_EQ(count, 64);
  refused(shm_gang_wait(-1, own.id), "waits for one that was not started");
  refused(shm_gang_wait(64, own.id), "waits for one that was not started");
  CHECK_EQ(shm_gang_wait(63, own.id), SHM_OK);
  CHECK_EQ(got, 5);
  refused(shm_gang_wait(63, own.id + 1), "waits for one that was not started");
  own.id++;
  CHECK_EQ(shm_gang_start(&own, &value, &got), 63);
  task->came[shm_gang_rank()] = 1;
}

/* Numbers rise, from 1 to 65535. */
static void fn_numbers(void *params) {
  task_t *task = params;
  int value = 5, got = 0;
  shm_collective_t own = {.kind = SHM_ALL_REDUCE, .dtype = SHM_INT32, .counts = {1}, .size = 1};
  own.group[0] = (uint8_t)shm_gang_rank();
  static const struct {
    uint32_t id;
    const char *says;
  } rows[] = {{0, "from 1 to 65535"}, {65536, "from 1 to 65535"}, {1, NULL}, {1, "must rise"},
              {7, NULL}, {6, "must rise"}, {7, "must rise"}, {65535, NULL}, {65535, "must rise"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    own.id = rows[i].id;
    int status = shm_gang_collective(&own, &value, &got);
    if (rows[i].says == NULL) CHECK_EQ(status, SHM_OK);
    else refused(status, rows[i].says);
  }
  task->came[shm_gang_rank()] = 1;
}

static int out_of_turn(int child) {
  (void)child;
  task_t *task = plain_task(SHM_BARRIER, 0x3, 0, 1);
  CHECK_EQ(call(fn_out_of_turn, task), SHM_OK);
  CHECK_EQ(task->came[0], 1);
  static const shm_func_t functions[] = {fn_out_of_turn, fn_starts_many, fn_numbers};
  for (int i = 0; i < 3; i++) {
    asked = functions[i];
    task->came[0] = task->came[1] = 0;
    CHECK_EQ(ask(task, 0x3), SHM_OK);
    CHECK_EQ(task->came[0] & task->came[1], 1);
  }
  asked = take_part;
  expect_gangs_work(0x3); /* nothing of it is left */
  return 0;
}

TEST(what_comes_out_of_turn_is_refused_in_a_sentence) {
  open_gangs(1, 65536);
  CHECK_EQ(shm_register(fn_out_of_turn, "out_of_turn", sizeof(task_t)), SHM_OK);
  CHECK_EQ(shm_register(fn_starts_many, "starts_many", sizeof(task_t)), SHM_OK);
  CHECK_EQ(shm_register(fn_numbers, "numbers", sizeof(task_t)), SHM_OK);
  launch_well(out_of_turn);
}

static int without_scratch(int child) {
  (void)child;
  task_t *task = plain_task(SHM_ALL_REDUCE, 0x3, 100, 1);
  CHECK_EQ(ask(task, 0x3), SHM_OK);
  CHECK(strstr(task->details[1], "launch with scratch=4MiB") != NULL);
  task = plain_task(SHM_BARRIER, 0x3, 0, 2); /* which moves nothing */
  task->commits = 1;
  CHECK_EQ(ask(task, 0x3), SHM_OK);
  CHECK_EQ(task->statuses[0] | task->statuses[1], SHM_OK);
  CHECK_EQ(task->states[1], SHM_GANG_COMMITTED);
  task = plain_task(SHM_ALL_REDUCE, 0x1, 100, 3); /* one alone has nobody to meet */
  CHECK_EQ(ask(task, 0x1), SHM_OK);
  CHECK_EQ(task->statuses[0], SHM_OK);
  return 0;
}

TEST(without_scratch_regions_members_meet_and_move_nothing) {
  open_gangs(1, 0);
  launch_well(without_scratch);
}

static int not_begun(int child) {
  (void)child;
  enum { AHEAD = 6 };
  for (int i = 0; i < 30; i++) expect_gangs_work(0x3); /* known to be short: they are handed ahead */
  task_t *task = plain_task(SHM_BARRIER, 0x3, 0, 1);
  task->stops = 2;
  shm_call_config_t call_config = gang_of(0x3);
  uint64_t sequences[AHEAD + 1];
  CHECK_EQ(shm_port_submit(&call_config, (uint64_t)(uintptr_t)task, 0, 0, &sequences[0]), SHM_OK);
  AWAIT(__atomic_load_n(&task->came[1], __ATOMIC_RELAXED) == 1);
  task_t *behind[AHEAD];
  for (int i = 0; i < AHEAD; i++) {
    behind[i] = shm_malloc(sizeof(task_t));
    *behind[i] = (task_t){.size = 2, .times = 2, .commits = 1};
    CHECK_EQ(shm_port_submit(&call_config, (uint64_t)(uintptr_t)behind[i], 0, 0, &sequences[i + 1]), SHM_OK);
  }
  AWAIT(helper_of(1).in_flight > 1);
  kill(helper_of(1).pid, SIGKILL);
  for (int ended = 0; ended <= AHEAD; ended++) {
    CHECK_EQ(shm_port_drain(&reply, 1, 8 * SECOND_NS), 1);
    int is_first = reply.sequence == sequences[0];
    CHECK_EQ(reply.status, is_first ? SHM_EHELPER_DIED : SHM_OK);
    CHECK_EQ(reply.gang, is_first ? SHM_GANG_ABORTED : SHM_GANG_COMMITTED);
  }
  for (int i = 0; i < AHEAD; i++) { /* each has run once */
    CHECK_EQ(behind[i]->came[0], 1);
    CHECK_EQ(behind[i]->came[1], 1);
  }
  shm_broker_stats_t stats;
  CHECK_EQ(shm_get_broker_stats(&stats), SHM_OK);
  CHECK(stats.requeued >= 1);
  return 0;
}

TEST(a_gang_that_nobody_had_begun_when_a_member_died_runs_with_its_replacement) {
  open_gangs(1, 65536);
  launch_well(not_begun);
}

#ifdef SHM_FAULTS
/* A member dies at its n-th passing of whatever others wait for. */

static int survives_a_death(int child) {
  (void)child;
  task_t *task = plain_task((int)notes[100], 0x7, 5000, 2);
  task->commits = 1;
  task->split = (int)notes[101];
  int status = ask(task, 0x7);
  int committed = reply.gang == SHM_GANG_COMMITTED;
  notes[102] = status != SHM_OK;
  if (status != SHM_OK) {
    CHECK_EQ(status, SHM_EHELPER_DIED);
    CHECK_EQ(reply.helper, 1);
  }
  for (int rank = 0; rank < 3; rank++) { /* one fate for all who live to see it */
    if (rank == 1 && status != SHM_OK) continue;
    int stands = task->statuses[rank] == SHM_OK && task->commit_statuses[rank] == SHM_OK &&
                 task->states[rank] == SHM_GANG_COMMITTED;
    CHECK_EQ(stands, committed);
    CHECK(stands || task->states[rank] != SHM_GANG_COMMITTED);
  }
  for (int again = 0; again < 3 && status != SHM_OK; again++) expect_gangs_work(0x7);
  return 0;
}

TEST_WITHIN(wherever_a_member_dies_the_gang_has_one_fate_and_the_next_one_runs, 120) {
  int deaths = 0;
  for (int kind = 0; kind < SHM_SEND; kind++) {
    for (int split = 0; split < 2; split++) {
      for (int passing = 1; passing < 200; passing++) {
        char fault[64];
        snprintf(fault, sizeof fault, "helper1@in_collective=KILL#%d", passing);
        setenv("SHMGPU_FAULTS", fault, 1);
        pid_t pid = fork(); /* a launch of its own: functions are registered once in a process */
        if (pid == 0) {
          open_gangs(1, 65536);
          config.helper_count = 3;
          notes[100] = (uint64_t)kind;
          notes[101] = (uint64_t)split;
          launch_well(survives_a_death);
          _exit(notes[102] ? 10 : 0);
        }
        int exit_status;
        CHECK_EQ(waitpid(pid, &exit_status, 0), pid);
        CHECK(WIFEXITED(exit_status) && (WEXITSTATUS(exit_status) == 10 || WEXITSTATUS(exit_status) == 0));
        if (WEXITSTATUS(exit_status) == 0) break; /* it passed so often and no more in that gang */
        deaths++;
      }
    }
  }
  CHECK(deaths > 80);
}
#endif
