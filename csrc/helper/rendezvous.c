/* rendezvous -- see rendezvous.h. */
#include "helper/rendezvous.h"

#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cores.h"
#include "base/fault.h"
#include "ipc/scoreboard.h"
#include "memory/arena.h"

enum {
  SPIN_NS = 30000,      /* a member that runs usually arrives within that */
  SPIN_LOOKS = 64,      /* between two looks at the clock */
  SLEEP_NS = 100000000, /* a lost wake-up costs no more than that */
  TRUST = 8             /* useless spins in a row; after that only each 16th wait spins */
};

typedef struct slot {
  uint64_t readers; /* helpers that may read the post */
  uint64_t until;   /* until they are past this position */
  int is_pinned;
} slot_t;

static struct {
  shmi_gang_member_t member;
  int helper, cores;
  int in_vain; /* spins without success in a row */
  int cursor;  /* of slots */
  uint32_t waits;
  slot_t slots[SHMI_GANG_SLOTS];
  shmi_gang_line_t *line;
} me = {.helper = -1};

/* ---- the gang that runs ---- */

void shmi_meet_open(int helper) {
  memset(&me, 0, sizeof me);
  me.helper = helper;
  me.cores = shmi_cores_allowed();
  me.line = shmi_gang_line(helper);
}

shmi_gang_member_t *shmi_meet_member(void) { return &me.member; }

int shmi_meet_helper(int rank) {
  uint64_t left = me.member.members;
  while (rank-- > 0) left &= left - 1;
  return __builtin_ctzll(left);
}

static int is_aborted(void) {
  return !me.member.is_decided && shmi_gang_fate(me.member.ticket).state == SHM_GANG_ABORTED;
}

int shmi_meet_begin(uint32_t ticket, uint64_t members) {
  uint64_t below = members & ((UINT64_C(1) << me.helper) - 1);
  me.member = (shmi_gang_member_t){.ticket = ticket,
                                   .helper = me.helper,
                                   .rank = __builtin_popcountll(below),
                                   .size = __builtin_popcountll(members),
                                   .members = members,
                                   .last = shmi_gang_position(ticket, 0, 0)};
  return is_aborted() ? SHM_EABORTED : SHM_OK;
}

/* Wake those of the helpers that sleep. */
static void ring(uint64_t helpers) {
  atomic_thread_fence(memory_order_seq_cst);
  for (helpers &= ~(UINT64_C(1) << me.helper); helpers != 0; helpers &= helpers - 1) {
    int helper = __builtin_ctzll(helpers);
    shmi_gang_line_t *line = shmi_gang_line(helper);
    if (atomic_load_explicit(&line->asleep, memory_order_relaxed) != 0) {
      shmi_gang_ring(UINT64_C(1) << helper);
    }
  }
}

/* This helper posts and reads nothing of that gang any more. */
static void leave(uint32_t ticket, uint64_t members) {
  uint64_t end = shmi_gang_end_of(ticket);
  atomic_store_explicit(&me.line->read, end, memory_order_release);
  atomic_store_explicit(&me.line->posted, end, memory_order_release);
  ring(members);
  for (int i = 0; i < SHMI_GANG_SLOTS; i++) me.slots[i].is_pinned = 0;
}

/* The gang is decided, so nobody needs its posts any more. Posts of an earlier gang stay: this
 * helper has left it, but others may still read them. */
static void free_slots_of(uint32_t ticket) {
  for (int i = 0; i < SHMI_GANG_SLOTS; i++) {
    if ((uint32_t)(me.slots[i].until >> 32) == ticket) me.slots[i].readers = 0;
  }
}

int shmi_meet_end(uint32_t ticket, int status) {
  shmi_gang_member_t *member = &me.member;
  if (member->ticket != ticket) return status;
  int state = shmi_gang_fate(ticket).state;
  if (status == SHM_OK && state == SHM_GANG_RUNNING) state = shmi_gang_arrive(ticket);
  else if (status != SHM_OK && state == SHM_GANG_RUNNING) {
    shmi_gang_abort(ticket, me.helper, SHM_GANG_MEMBER_FAILED);
    state = shmi_gang_fate(ticket).state;
  }
  if (status == SHM_OK && state == SHM_GANG_ABORTED && !member->is_decided) status = SHM_EABORTED;
  if (state != SHM_GANG_RUNNING) free_slots_of(ticket);
  leave(ticket, member->members);
  member->ticket = 0;
  return status;
}

/* ---- waiting ---- */

/* Those of the helpers that are not at that position. */
static uint64_t missing_of(uint64_t helpers, uint64_t position, int to_read) {
  uint64_t missing = 0;
  for (uint64_t left = helpers; left != 0; left &= left - 1) {
    shmi_gang_line_t *line = shmi_gang_line(__builtin_ctzll(left));
    uint64_t at = atomic_load_explicit(to_read ? &line->posted : &line->read, memory_order_acquire);
    if (!shmi_gang_is_past(at, position)) missing |= left & -left;
  }
  return missing;
}

/* What a helper waits for: that others are at a position, or that some slot is free. */
typedef struct wish {
  uint64_t helpers, position;
  int to_read; /* they are to have posted; else they are to have read */
  int a_slot;  /* any slot: the helpers are the readers of one */
} wish_t;

static int free_slot(void);

static int is_granted(wish_t *wish) {
  if (wish->a_slot) return free_slot() >= 0;
  wish->helpers = missing_of(wish->helpers, wish->position, wish->to_read);
  return wish->helpers == 0;
}

static int spin(wish_t *wish) {
  if (me.cores < me.member.size || (me.in_vain >= TRUST && me.waits++ % 16 != 0)) return 0;
  uint64_t end_ns = shmi_clock_ns() + SPIN_NS;
  do {
    for (int look = 0; look < SPIN_LOOKS; look++) {
      if (is_granted(wish)) {
        me.in_vain = 0;
        return 1;
      }
      shmi_cores_relax();
    }
  } while (!is_aborted() && shmi_clock_ns() < end_ns);
  if (me.in_vain < TRUST) me.in_vain++;
  return 0;
}

static void sleep_until_rung(uint32_t seen) {
  struct timespec most = {.tv_nsec = SLEEP_NS};
  syscall(SYS_futex, &me.line->bell, FUTEX_WAIT, seen, &most, NULL, 0);
}

/* Wait until it is granted, or the gang has ended. This helper's line tells others what it waits
 * for. */
static int wait_for(wish_t wish) {
  SHMI_FAULT(IN_COLLECTIVE);
  if (is_granted(&wish) || is_aborted()) return is_aborted() ? SHM_EABORTED : SHM_OK;
  uint64_t begun_ns = shmi_clock_ns();
  atomic_store_explicit(&me.line->waits_until, wish.position, memory_order_relaxed);
  atomic_store_explicit(&me.line->waits_to_read, (uint32_t)wish.to_read, memory_order_relaxed);
  atomic_store_explicit(&me.line->waiting_for, wish.helpers, memory_order_release);
  if (!spin(&wish)) {
    for (;;) {
      atomic_store(&me.line->asleep, 1);
      uint32_t seen = atomic_load(&me.line->bell);
      if (is_granted(&wish) || is_aborted()) break;
      sleep_until_rung(seen);
    }
    atomic_store_explicit(&me.line->asleep, 0, memory_order_relaxed);
  }
  atomic_store_explicit(&me.line->waiting_for, 0, memory_order_relaxed);
  uint64_t waited_ns = shmi_clock_ns() - begun_ns;
  me.member.waited_ns += waited_ns;
  shmi_count(&shmi_scoreboard_helper(me.helper)->collective_wait_ns, waited_ns);
  return is_aborted() ? SHM_EABORTED : SHM_OK;
}

int shmi_meet_wait(uint64_t helpers, uint64_t position) {
  return wait_for((wish_t){
      .helpers = helpers & ~(UINT64_C(1) << me.helper), .position = position, .to_read = 1});
}

/* ---- slots ---- */

size_t shmi_meet_slot_bytes(void) {
  return shmi_arena_scratch_bytes() / SHMI_GANG_SLOTS & ~(size_t)(SHMI_GANG_LINE - 1);
}

char *shmi_meet_at(int helper, int slot) {
  uint64_t base = shmi_arena_scratch_address(helper);
  return (char *)(uintptr_t)base + (size_t)slot * shmi_meet_slot_bytes();
}

static int is_free(slot_t *slot) {
  if (slot->is_pinned) return 0;
  slot->readers = missing_of(slot->readers, slot->until, 0);
  return slot->readers == 0;
}

static int pinned_slots(void) {
  int count = 0;
  for (int i = 0; i < SHMI_GANG_SLOTS; i++) count += me.slots[i].is_pinned;
  return count;
}

/* Slots are used in turn, so that readers find the next post at once. -1: none is free. */
static int free_slot(void) {
  for (int i = 0; i < SHMI_GANG_SLOTS; i++) {
    int at = (me.cursor + i) % SHMI_GANG_SLOTS;
    if (is_free(&me.slots[at])) return at;
  }
  return -1;
}

/* Any slot will do. If all are taken, name one of another gang, if there is one: its readers do not
 * wait for this gang, so this gang is not taken to be stuck. */
static wish_t wish_for_a_slot(void) {
  const slot_t *named = NULL;
  for (int i = 0; i < SHMI_GANG_SLOTS; i++) {
    const slot_t *slot = &me.slots[(me.cursor + i) % SHMI_GANG_SLOTS];
    if (slot->is_pinned) continue;
    if (named == NULL || (uint32_t)(slot->until >> 32) != me.member.ticket) named = slot;
  }
  return (wish_t){.helpers = named->readers, .position = named->until, .a_slot = 1};
}

int shmi_meet_slot(int pin) {
  if (pin && pinned_slots() >= SHMI_GANG_SLOTS - SHMI_MEET_FREE) return SHM_EAGAIN;
  int at = free_slot();
  if (at < 0 && pin) return SHM_EAGAIN;
  if (at < 0) {
    int status = wait_for(wish_for_a_slot());
    if (status != SHM_OK) return status;
    at = free_slot();
  }
  me.cursor = (at + 1) % SHMI_GANG_SLOTS;
  me.slots[at].is_pinned = pin;
  return at;
}

void shmi_meet_post(int slot, uint64_t position, uint64_t readers, const shmi_gang_post_t *head) {
  SHMI_FAULT(IN_COLLECTIVE);
  shmi_gang_post_t *post = &shmi_gang_posts(me.helper)[slot];
  post->bytes = head->bytes;
  post->group = head->group;
  post->what = head->what;
  atomic_store_explicit(&post->position, position, memory_order_relaxed);
  me.slots[slot].readers = readers & ~(UINT64_C(1) << me.helper);
  me.slots[slot].until = position;
  shmi_meet_pass(position, readers);
}

void shmi_meet_unpin(int slot, uint64_t until) {
  me.slots[slot].is_pinned = 0;
  me.slots[slot].until = until;
}

void shmi_meet_pass(uint64_t position, uint64_t readers) {
  atomic_store_explicit(&me.line->posted, position, memory_order_release);
  SHMI_FAULT(IN_COLLECTIVE);
  ring(readers);
}

int shmi_meet_find(int helper, uint64_t position) {
  static uint8_t guess[SHM_MAX_HELPERS]; /* slots are taken in turn */
  const shmi_gang_post_t *posts = shmi_gang_posts(helper);
  for (int i = 0; i < SHMI_GANG_SLOTS; i++) {
    int at = (guess[helper] + i) % SHMI_GANG_SLOTS;
    if (atomic_load_explicit(&posts[at].position, memory_order_relaxed) == position) {
      guess[helper] = (uint8_t)((at + 1) % SHMI_GANG_SLOTS);
      return at;
    }
  }
  return -1;
}

void shmi_meet_have_read(uint64_t position, uint64_t posters) {
  SHMI_FAULT(IN_COLLECTIVE);
  atomic_store_explicit(&me.line->read, position, memory_order_release);
  ring(posters);
}

/* ---- the end ---- */

int shmi_meet_commit(void) {
  shmi_gang_member_t *member = &me.member;
  if (member->is_decided) return SHM_OK;
  SHMI_FAULT(IN_COLLECTIVE);
  int state = shmi_gang_arrive(member->ticket);
  SHMI_FAULT(IN_COLLECTIVE);
  uint64_t others = member->members & ~(UINT64_C(1) << me.helper);
  uint64_t begun_ns = state == SHM_GANG_RUNNING ? shmi_clock_ns() : 0;
  atomic_store_explicit(&me.line->waits_until, shmi_gang_end_of(member->ticket), memory_order_relaxed);
  atomic_store_explicit(&me.line->waits_to_read, 1, memory_order_relaxed);
  if (state == SHM_GANG_RUNNING) atomic_store(&me.line->waiting_for, others);
  for (int look = 0; state == SHM_GANG_RUNNING && me.cores >= member->size && look < 1000; look++) {
    shmi_cores_relax();
    state = shmi_gang_fate(member->ticket).state;
  }
  while (state == SHM_GANG_RUNNING) {
    atomic_store(&me.line->asleep, 1);
    uint32_t seen = atomic_load(&me.line->bell);
    state = shmi_gang_fate(member->ticket).state;
    if (state == SHM_GANG_RUNNING) sleep_until_rung(seen);
    atomic_store_explicit(&me.line->asleep, 0, memory_order_relaxed);
  }
  atomic_store_explicit(&me.line->waiting_for, 0, memory_order_relaxed);
  if (begun_ns != 0) {
    uint64_t waited_ns = shmi_clock_ns() - begun_ns;
    member->waited_ns += waited_ns;
    shmi_count(&shmi_scoreboard_helper(me.helper)->collective_wait_ns, waited_ns);
  }
  if (state != SHM_GANG_COMMITTED) return SHM_EABORTED;
  member->is_decided = 1;
  SHMI_FAULT(IN_COLLECTIVE);
  free_slots_of(member->ticket);
  return SHM_OK;
}

int shmi_meet_abort(int why) { return shmi_gang_abort(me.member.ticket, me.helper, why); }
