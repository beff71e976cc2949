/* hostile.c -- children that write what they please, while others verify every result.
 *
 * Round after round a broker is launched. Some of its children are hostile: they write random
 * frames (floods, torn ones), random parameter blocks, and random bytes over all that they can
 * write, the statistics page that they share with everybody included. The others call, and check
 * each of their own results bit for bit, and that nobody has written to their arenas. Whatever
 * happens, no helper dies and nobody but a hostile child is ended.
 *
 * HOSTILE_SECONDS (3) says for how long, HOSTILE_SEED repeats a run.
 */
#include "attacks.h"

#include <pthread.h>

#include "ipc/scoreboard.h"
#include "memory/arena.h"

enum { CHILDREN = 6, HONEST = 3, HELPERS = 2, WORDS = 64, KEY = 7, CANARY_WORDS = 1024 };
enum { /* notes */
  NOTE_SEED = 1, NOTE_CALLS, NOTE_ATTACKS, NOTE_ENDED, NOTE_HELPER_DEATHS,
  NOTE_ROUND_OVER, NOTE_WRONG_END
};

/* ---- the function that everybody calls ---- */

typedef struct job {
  uint64_t data; /* address of words in the caller's arena */
  uint64_t count;
  uint64_t salt;
  uint64_t digest;
  int64_t status;
} job_t;

static uint64_t digest_of(const uint64_t *words, uint64_t count, uint64_t salt) {
  uint64_t sum = salt;
  for (uint64_t i = 0; i < count; i++) {
    sum = (sum ^ words[i]) * UINT64_C(0x100000001B3);
    sum ^= sum >> 29;
  }
  return sum;
}

static void fn_digest(void *params) {
  job_t job; /* read once, into a private copy; only the copy is believed */
  memcpy(&job, params, sizeof job);
  job.status = -1;
  if (job.count <= 4096 && (job.data & 7) == 0 &&
      shm_in_arena((const void *)(uintptr_t)job.data, job.count * 8)) {
    job.digest = digest_of((const uint64_t *)(uintptr_t)job.data, job.count, job.salt);
    job.status = 0;
  }
  memcpy(params, &job, sizeof job);
}

static void fn_digest_batched(void *params) { fn_digest(params); }

/* As members of a gang: of the sum of what each of them was given. Elsewhere there is no sum. */
static void fn_digest_together(void *params) {
  static uint64_t sum[4096];
  job_t job;
  memcpy(&job, params, sizeof job);
  if (job.count > 4096 || (job.data & 7) != 0 ||
      !shm_in_arena((const void *)(uintptr_t)job.data, job.count * 8)) {
    return;
  }
  shm_collective_t all_reduce = {.id = 1, .kind = SHM_ALL_REDUCE, .dtype = SHM_UINT64, .counts = {job.count}};
  int rank = shm_gang_rank();
  if (shm_gang_collective(&all_reduce, (const void *)(uintptr_t)job.data, sum) != SHM_OK) return;
  if (shm_gang_commit() != SHM_OK || rank != 0) return;
  job.digest = digest_of(sum, job.count, job.salt);
  job.status = 0;
  memcpy(params, &job, sizeof job);
}

/* ---- honest children ---- */

/* A child that failed ends the launch, and a launch that ends sends SIGTERM: the honest go on. */
static int verify(dice_t *dice) {
  signal(SIGTERM, SIG_IGN);
  uint64_t *canary = shm_malloc(CANARY_WORDS * sizeof *canary);
  CHECK(canary != NULL);
  uint64_t canary_seed = roll(dice), calls = 0;
  for (uint64_t i = 0; i < CANARY_WORDS; i++) canary[i] = canary_seed + i;
  while (notes[NOTE_ROUND_OVER] == 0) {
    job_t *job = shm_malloc(sizeof *job);
    uint64_t *words = shm_malloc(WORDS * sizeof *words);
    CHECK(job != NULL && words != NULL);
    scribble(dice, words, WORDS * sizeof *words);
    *job = (job_t){.data = (uint64_t)(uintptr_t)words, .count = WORDS, .salt = roll(dice)};
    const job_t asked = *job;
    uint64_t expected = digest_of(words, WORDS, job->salt), way = below(dice, 5);
    int status;
    if (way < 2) {
      status = call(fn_digest, job);
    } else { /* where a hostile child's frames ask for the same batch, or the same helpers at once */
      shm_call_config_t how = {.function = (uint64_t)(uintptr_t)fn_digest_batched,
                               .batch_key = KEY, .rows = 1};
      shm_reply_t reply;
      if (way == 4) {
        uint64_t twice[WORDS];
        for (uint64_t i = 0; i < WORDS; i++) twice[i] = 2 * words[i];
        expected = digest_of(twice, WORDS, job->salt);
        how = (shm_call_config_t){.function = (uint64_t)(uintptr_t)fn_digest_together,
                                  .placement = 3, .rows = 1, .gang = 1};
        job->status = -1;
      }
      do {
        status = shm_port_call(&how, (uint64_t)(uintptr_t)job, 0, &reply);
        while (status == SHM_EINTR && reply.sequence != 0)
          status = shm_port_wait(reply.sequence, 0, &reply);
      } while (status == SHM_EINTR);
    }
    CHECK_EQ(status, SHM_OK);
    CHECK_EQ(job->status, 0);
    CHECK_EQ(job->digest, expected);
    CHECK(job->data == asked.data && job->count == asked.count && job->salt == asked.salt);
    CHECK_EQ(shm_free(job), SHM_OK);
    CHECK_EQ(shm_free(words), SHM_OK);
    if (++calls % 64 == 0) {
      for (uint64_t i = 0; i < CANARY_WORDS; i++) CHECK_EQ(canary[i], canary_seed + i);
      CHECK_EQ(shm_check(), SHM_OK);
    }
  }
  notes[NOTE_CALLS] += calls;
  return 0;
}

/* ---- hostile children ---- */

static uint64_t some_address(dice_t *dice, int child) {
  uint64_t base = shm_arena_base(child), bytes = shm_arena_bytes();
  switch (below(dice, 12)) {
    case 0: return 0;
    case 1: return roll(dice);
    case 2: return base + bytes - 8;
    case 3: return base - 8;
    case 4: return base + bytes;
    case 5: return UINT64_MAX - 7;
    case 6: return shm_arena_base((int)below(dice, CHILDREN)) + below(dice, bytes / 8) * 8;
    case 7: return base + below(dice, bytes); /* misaligned, as a rule */
    case 8: return (uint64_t)(uintptr_t)fn_forbidden;
    default: return base + below(dice, bytes / 8) * 8;
  }
}

static uint64_t some_function(dice_t *dice) {
  switch (below(dice, 10)) {
    case 0: return (uint64_t)(uintptr_t)fn_forbidden;
    case 1: return (uint64_t)(uintptr_t)fn_digest + 1 + below(dice, 32);
    case 2: return roll(dice);
    case 3: return 0;
    case 4: return (uint64_t)(uintptr_t)_exit;
    case 5: case 6: return (uint64_t)(uintptr_t)fn_digest;
    case 7: return (uint64_t)(uintptr_t)fn_digest_together;
    default: return (uint64_t)(uintptr_t)fn_digest_batched;
  }
}

static uint64_t one_of(dice_t *dice, const uint64_t *choices, uint64_t count) {
  uint64_t at = below(dice, count + 1);
  return at < count ? choices[at] : roll(dice);
}

/* careful: a frame that is wrong in what it says only, so that its child is not ended. */
static shmi_frame_t some_frame(dice_t *dice, int child, int careful) {
  static const uint64_t keys[] = {0, KEY, KEY, 1}, masks[] = {0, 0, 0, 1, 3, UINT64_MAX};
  static const uint64_t times[] = {0, 0, 1, UINT64_MAX}, counts[] = {0, 1, 1, 2, 8, UINT32_MAX};
  shmi_frame_t frame = call_frame(some_function(dice), some_address(dice, child), roll(dice) % 64);
  frame.pool = (uint8_t)(below(dice, 4) ? 0 : roll(dice));
  frame.slot = (uint16_t)roll(dice);
  frame.generation = (uint32_t)roll(dice);
  frame.status = (uint16_t)roll(dice);
  frame.rows = (uint32_t)one_of(dice, counts, 6);
  frame.batch_key = one_of(dice, keys, 4);
  frame.deadline_ns = one_of(dice, times, 4);
  frame.placement = one_of(dice, masks, 6);
  frame.priority = (uint8_t)below(dice, SHMI_PRIORITIES);
  frame.flags = (uint8_t)(below(dice, 4) ? 0 : SHMI_FRAME_GANG);
  if (below(dice, 6) == 0) frame.kind = SHMI_FRAME_CANCEL;
  if (careful) return frame;
  switch (below(dice, 6)) {
    case 0: scribble(dice, &frame, sizeof frame); break;
    case 1: frame.kind = (uint8_t)roll(dice); break;
    case 2: frame.kind = SHMI_FRAME_GROW; break;
    case 3: frame.flags = (uint8_t)roll(dice); break;
    case 4: frame.priority = (uint8_t)roll(dice); break;
    default: break;
  }
  return frame;
}

/* All that this process can write of what it shares: its arena and its page of statistics. */
static void scribble_everything(dice_t *dice, int child) {
  scribble(dice, (void *)(uintptr_t)shm_arena_base(child), shm_arena_bytes());
  scribble(dice, shmi_scoreboard_child(child), sizeof(shmi_child_page_t));
}

static int reply_pipe(void) {
  for (int fd = 3; fd < 1024; fd++) {
    char path[64], name[64];
    if ((users_fds[fd / 64] >> (fd % 64) & 1) != 0) continue;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, name, sizeof name - 1);
    if (length > 5 && strncmp(name, "pipe:", 5) == 0 &&
        (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY)
      return fd;
  }
  return -1;
}

static void read_some_replies(int fd, int timeout_ms) {
  shmi_frame_t frames[64];
  struct pollfd one = {fd, POLLIN, 0};
  if (poll(&one, 1, timeout_ms) == 1 && read(fd, frames, sizeof frames) <= 0) _exit(0);
}

typedef struct scribbler {
  dice_t dice;
  int child;
} scribbler_t;

static void *scribble_for_ever(void *of) {
  scribbler_t *own = of;
  for (;;) scribble_everything(&own->dice, own->child);
  return NULL;
}

enum style { FLOODS, TEARS, SENDS_NONSENSE, SCRIBBLES, FREES, STYLES };

static int attack(int child, dice_t *dice) {
  int out = request_pipe(), in = reply_pipe();
  enum style style = (enum style)below(dice, STYLES);
  uint64_t sent = 0, limit = style == FLOODS || style == TEARS ? 100000 : UINT64_MAX;
  pthread_t thread;
  scribbler_t scribbler = {.dice = {roll(dice)}, .child = child};
  if (style == SCRIBBLES) pthread_create(&thread, NULL, scribble_for_ever, &scribbler);
  if (style == FREES) scribble_everything(dice, child); /* what is there to free lies elsewhere */
  while (notes[NOTE_ROUND_OVER] == 0 && sent < limit) {
    notes[NOTE_ATTACKS]++;
    sent++;
    if (style == FREES) {
      void *block = shm_malloc(below(dice, 4) ? below(dice, 4096) : roll(dice));
      if (block != NULL) scribble(dice, block, shm_usable_size(block));
      void *wrong = (char *)(uintptr_t)some_address(dice, child);
      if (wrong != block) shm_free(wrong); /* may be right by chance: then it is this child's loss */
      if (block != NULL && below(dice, 8)) {
        shm_free(block);
        CHECK_EQ(shm_free(block), SHM_EBAD_FREE);
      }
      if (below(dice, 64) == 0) CHECK_EQ(shm_check(), SHM_OK);
      continue;
    }
    shmi_frame_t frames[16];
    size_t count = 1 + below(dice, 16);
    for (size_t i = 0; i < count; i++)
      frames[i] = some_frame(dice, child, style == SENDS_NONSENSE || style == SCRIBBLES);
    size_t bytes = count * sizeof *frames;
    if (style == TEARS && below(dice, 4) == 0) bytes -= 1 + below(dice, 63);
    size_t written = write_raw(out, frames, bytes);
    if (style == FLOODS || style == TEARS) continue; /* never reads a reply */
    /* Careful ones keep to their window: as many calls as replies. */
    for (size_t i = 0; written > 0 && i < count; i++) {
      if (frames[i].kind == SHMI_FRAME_CALL) read_some_replies(in, 20);
    }
  }
  if (style == SCRIBBLES) _exit(0);
  return 0;
}

/* ---- rounds ---- */

static int play(int child) {
  uint64_t life = ++notes[32 + child]; /* one that was ended begins another attack */
  dice_t dice = {notes[NOTE_SEED] * 1000003 + (uint64_t)child + life * 7919};
  return child < HONEST ? verify(&dice) : attack(child, &dice);
}

static void watch_children(const shm_event_t *event) {
  if (event->kind == SHM_EVENT_CHILD_ENDED) {
    if (event->index < HONEST && event->is_failure) notes[NOTE_WRONG_END]++;
    if (event->index >= HONEST && event->exit_status != 0) notes[NOTE_ENDED]++;
  }
  if (event->kind == SHM_EVENT_HELPER_DIED) notes[NOTE_HELPER_DEATHS]++;
}

static uint64_t number_in(const char *name, uint64_t otherwise) {
  const char *text = getenv(name);
  return text != NULL && *text != '\0' ? strtoull(text, NULL, 10) : otherwise;
}

/* A process of its own times the round: the parent has one thread, which dispatches. */
static int time_the_round(void) {
  harness_sleep_ms(250);
  notes[NOTE_ROUND_OVER] = 1;
  return 0;
}

TEST_WITHIN(test_f11_whatever_hostile_children_write_others_get_their_results_bit_for_bit, 7200) {
  broker_open(CHILDREN, HELPERS);
  CHECK_EQ(shm_register(fn_digest, "digest", sizeof(job_t)), SHM_OK);
  shm_function_config_t batched = {.name = "digest_batched", .func = fn_digest_batched,
                                   .params_size = sizeof(job_t), .batch_max_rows = 8};
  CHECK_EQ(shm_register_function(&batched, NULL), SHM_OK);
  CHECK_EQ(shm_register(fn_digest_together, "digest_together", sizeof(job_t)), SHM_OK);
  config.scratch_bytes = 64 << 10;
  config.arena_bytes = 256 << 10;
  config.window = 16;
  config.grace_ns = 30 * (uint64_t)SECOND_NS;
  host.on_event = watch_children;
  int64_t seconds = (int64_t)number_in("HOSTILE_SECONDS", 3);
  uint64_t seed = number_in("HOSTILE_SEED", (uint64_t)harness_now_ns() % 1000000);
  printf("    hostile: HOSTILE_SEED=%llu repeats this run\n", (unsigned long long)seed);
  int64_t until = harness_now_ns() + seconds * SECOND_NS;
  uint64_t rounds = 0;
  for (; harness_now_ns() < until; rounds++) {
    notes[NOTE_SEED] = seed + rounds;
    notes[NOTE_ROUND_OVER] = 0;
    for (int child = 0; child < CHILDREN; child++) notes[32 + child] = 0;
    /* In every other round whoever is ended comes back, in an arena that others had to clear. */
    config.restart = rounds % 2 ? SHM_RESTART_ON_FAILURE : SHM_RESTART_NEVER;
    config.max_restarts = 1000;
    pid_t clock = fork();
    if (clock == 0) _exit(time_the_round());
    int status = launch(play);
    notes[NOTE_ROUND_OVER] = 1;
    waitpid(clock, NULL, 0);
    if (status != SHM_OK && status != SHM_ECHILD_FAILED)
      harness_fail(__FILE__, __LINE__, "round %llu: %s (%s)", (unsigned long long)rounds,
                   shm_status_name(status), shm_error_detail());
    CHECK_EQ(notes[NOTE_HELPER_DEATHS], 0);
    CHECK_EQ(notes[NOTE_WRONG_END], 0);
    CHECK_EQ(notes[NOTE_FORBIDDEN], 0);
    expect_nothing_left();
  }
  printf("    hostile: %llu rounds, %llu results verified, %llu attacks, %llu children ended\n",
         (unsigned long long)rounds, (unsigned long long)notes[NOTE_CALLS],
         (unsigned long long)notes[NOTE_ATTACKS], (unsigned long long)notes[NOTE_ENDED]);
  CHECK(notes[NOTE_CALLS] > rounds * HONEST);
  CHECK(notes[NOTE_ATTACKS] > rounds);
}
