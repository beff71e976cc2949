/* gang -- see gang.h.
 *
 * A word, from the top: ticket 32 bits, size 8, arrived 8, helper 8, why 6, state 2.
 */
#include "ipc/gang.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/error_detail.h"
#include "memory/available.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

enum { STALE = 1 << 30 }; /* tickets: a quarter of all; of two that differ by less than half of
                             all, the later is known */

typedef struct place { /* where a ticket lives, found by its number */
  _Alignas(SHMI_GANG_LINE) _Atomic uint64_t word;
  uint64_t members; /* these two are written before the word */
  uint64_t epoch;
} place_t;

typedef struct member {
  shmi_gang_line_t line;
  shmi_gang_post_t posts[SHMI_GANG_SLOTS];
} member_t;

static struct {
  place_t places[SHMI_GANGS];
  member_t members[];
} *shared;
static size_t shared_bytes;
static int helper_count;

/* The parent's alone. */
static uint32_t last_ticket, open_count;
static uint8_t is_open[SHMI_GANGS];
static uint32_t last_of[SHM_MAX_HELPERS]; /* the last ticket that each was given */

/* ---- words ---- */

static uint64_t word_of(uint32_t ticket, uint32_t size, uint32_t arrived, shmi_gang_fate_t fate) {
  return (uint64_t)ticket << 32 | (uint64_t)size << 24 | (uint64_t)arrived << 16 |
         (uint64_t)fate.helper << 8 | (uint64_t)fate.why << 2 | (uint64_t)fate.state;
}
static uint32_t ticket_in(uint64_t word) { return (uint32_t)(word >> 32); }
static uint32_t size_in(uint64_t word) { return (uint32_t)(word >> 24 & 0xff); }
static uint32_t arrived_in(uint64_t word) { return (uint32_t)(word >> 16 & 0xff); }
static shmi_gang_fate_t fate_in(uint64_t word) {
  return (shmi_gang_fate_t){.state = (int)(word & 3),
                            .helper = (int)(word >> 8 & 0xff),
                            .why = (int)(word >> 2 & 0x3f)};
}

static place_t *place_of(uint32_t ticket) { return &shared->places[ticket % SHMI_GANGS]; }

static const shmi_gang_fate_t running = {.state = SHM_GANG_RUNNING, .helper = SHM_NO_HELPER};
static const shmi_gang_fate_t committed = {.state = SHM_GANG_COMMITTED, .helper = SHM_NO_HELPER};
static const shmi_gang_fate_t gone = {.state = SHM_GANG_ABORTED, .helper = SHM_NO_HELPER};

/* The word of that ticket as long as it runs; 0: it does not. */
static uint64_t running_word(uint32_t ticket) {
  uint64_t word = atomic_load_explicit(&place_of(ticket)->word, memory_order_acquire);
  return ticket_in(word) == ticket && fate_in(word).state == SHM_GANG_RUNNING ? word : 0;
}

shmi_gang_fate_t shmi_gang_fate(uint32_t ticket) {
  uint64_t word = atomic_load_explicit(&place_of(ticket)->word, memory_order_acquire);
  return ticket_in(word) == ticket && fate_in(word).state != SHM_GANG_NONE ? fate_in(word) : gone;
}

uint64_t shmi_gang_epoch(uint32_t ticket) { return place_of(ticket)->epoch; }

int shmi_gang_arrive(uint32_t ticket) {
  for (uint64_t word; (word = running_word(ticket)) != 0;) {
    uint32_t size = size_in(word), arrived = arrived_in(word) + 1;
    int is_last = arrived == size;
    uint64_t next = word_of(ticket, size, arrived, is_last ? committed : running);
    if (!atomic_compare_exchange_strong(&place_of(ticket)->word, &word, next)) continue;
    if (is_last) shmi_gang_ring(place_of(ticket)->members);
    return is_last ? SHM_GANG_COMMITTED : SHM_GANG_RUNNING;
  }
  return shmi_gang_fate(ticket).state;
}

static int abort_quietly(uint32_t ticket, int helper, int why) {
  const shmi_gang_fate_t fate = {.state = SHM_GANG_ABORTED, .helper = helper, .why = why};
  for (uint64_t word; (word = running_word(ticket)) != 0;) {
    uint64_t next = word_of(ticket, size_in(word), arrived_in(word), fate);
    if (atomic_compare_exchange_strong(&place_of(ticket)->word, &word, next)) return 1;
  }
  return 0;
}

int shmi_gang_abort(uint32_t ticket, int helper, int why) {
  uint64_t members = place_of(ticket)->members;
  if (!abort_quietly(ticket, helper, why)) return 0;
  shmi_gang_ring(members);
  return 1;
}

/* ---- lines ---- */

shmi_gang_line_t *shmi_gang_line(int helper) { return &shared->members[helper].line; }
shmi_gang_post_t *shmi_gang_posts(int helper) { return shared->members[helper].posts; }

void shmi_gang_ring(uint64_t helpers) {
  for (; helpers != 0; helpers &= helpers - 1) {
    shmi_gang_line_t *line = shmi_gang_line(__builtin_ctzll(helpers));
    atomic_fetch_add(&line->bell, 1);
    if (atomic_load(&line->asleep) == 0) continue; /* it looks once more before it sleeps */
    syscall(SYS_futex, &line->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
  }
}

static void move_past(int helper, uint32_t ticket) {
  shmi_gang_line_t *line = shmi_gang_line(helper);
  atomic_store(&line->posted, shmi_gang_end_of(ticket));
  atomic_store(&line->read, shmi_gang_end_of(ticket));
  last_of[helper] = ticket;
}

/* ---- the parent ---- */

static int is_live(uint32_t ticket) {
  uint64_t word = atomic_load_explicit(&place_of(ticket)->word, memory_order_relaxed);
  return is_open[ticket % SHMI_GANGS] && ticket_in(word) == ticket;
}

int shmi_gang_has_room(void) { return open_count < SHMI_GANGS; }

uint32_t shmi_gang_open(uint64_t members, uint64_t epoch) {
  do {
    last_ticket++;
  } while (last_ticket == 0 || is_open[last_ticket % SHMI_GANGS]);
  uint32_t ticket = last_ticket;
  place_t *place = place_of(ticket);
  is_open[ticket % SHMI_GANGS] = 1;
  open_count++;
  place->members = members;
  place->epoch = epoch;
  for (uint64_t left = members; left != 0; left &= left - 1) {
    int helper = __builtin_ctzll(left);
    /* Its last gang was so long ago that its numbers would soon wrap and seem to be ahead. It reads
     * nothing now, so its line may be moved on. */
    if (ticket - last_of[helper] > STALE && !is_live(last_of[helper])) move_past(helper, ticket - 1);
    last_of[helper] = ticket;
  }
  uint32_t size = (uint32_t)__builtin_popcountll(members);
  atomic_store_explicit(&place->word, word_of(ticket, size, 0, running), memory_order_release);
  return ticket;
}

void shmi_gang_close(uint32_t ticket) {
  if (!is_live(ticket)) return;
  is_open[ticket % SHMI_GANGS] = 0;
  open_count--;
}

void shmi_gang_member_died(int helper) {
  uint64_t all = 0;
  /* The newest first: whoever sees that one is aborted must not begin the next. */
  for (uint32_t i = 0; i < SHMI_GANGS && open_count > 0; i++) {
    uint32_t at = (last_ticket - i) % SHMI_GANGS;
    place_t *place = &shared->places[at];
    if (!is_open[at] || (place->members >> helper & 1) == 0) continue;
    uint32_t ticket = ticket_in(atomic_load_explicit(&place->word, memory_order_relaxed));
    abort_quietly(ticket, helper, SHM_GANG_MEMBER_DIED);
  }
  shmi_gang_line_t *line = shmi_gang_line(helper); /* another process will be that helper */
  atomic_store(&line->waiting_for, 0);
  atomic_store(&line->asleep, 0);
  move_past(helper, last_ticket);
  for (int h = 0; h < helper_count; h++) all |= UINT64_C(1) << h;
  shmi_gang_ring(all); /* also whoever waits until it has read */
}

int shmi_gang_waits(int helper) {
  shmi_gang_line_t *line = shmi_gang_line(helper);
  uint64_t until = atomic_load(&line->waits_until), missing = 0;
  int to_read = (int)atomic_load(&line->waits_to_read);
  if (running_word((uint32_t)(until >> 32)) == 0) return 0;
  for (uint64_t left = atomic_load(&line->waiting_for); left != 0; left &= left - 1) {
    shmi_gang_line_t *other = shmi_gang_line(__builtin_ctzll(left));
    uint64_t at = atomic_load(to_read ? &other->posted : &other->read);
    missing += !shmi_gang_is_past(at, until);
  }
  return missing > 0;
}

int shmi_gang_is_stuck(uint32_t ticket, uint64_t members, uint64_t *last) {
  uint64_t sum = UINT64_C(0xcbf29ce484222325); /* FNV-1a over all that a step would change */
  int all_wait = running_word(ticket) != 0 && members != 0;
  for (uint64_t left = members; left != 0 && all_wait; left &= left - 1) {
    int helper = __builtin_ctzll(left);
    shmi_gang_line_t *line = shmi_gang_line(helper);
    uint64_t until = atomic_load(&line->waits_until);
    const uint64_t words[] = {atomic_load(&line->posted), atomic_load(&line->read), until,
                              atomic_load(&line->waiting_for)};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
      sum = (sum ^ words[i]) * UINT64_C(0x100000001b3);
    }
    all_wait = (uint32_t)(until >> 32) == ticket && shmi_gang_waits(helper);
  }
  if (sum == 0) sum = 1;
  int is_stuck = all_wait && *last == sum;
  *last = all_wait ? sum : 0;
  return is_stuck;
}

void shmi_gang_skip_to(uint32_t ticket) { last_ticket = ticket - 1; }

void shmi_gang_number_from(uint32_t ticket) {
  shmi_gang_skip_to(ticket);
  for (int h = 0; h < helper_count; h++) move_past(h, last_ticket);
}

/* ---- making it ---- */

int shmi_gang_create(int helpers) {
  size_t bytes = shmi_memory_in_pages(sizeof *shared + (size_t)helpers * sizeof(member_t));
  int fd = shmi_descriptor_own(memfd_create("shmgpu-gangs", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd < 0) return SHM_ESYSTEM;
  void *made = MAP_FAILED;
  if (ftruncate(fd, (off_t)bytes) == 0) {
    made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  int is_sealed = made != MAP_FAILED &&
                  fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE |
                                             F_SEAL_SEAL) == 0;
  if (!is_sealed) {
    int saved = errno;
    shmi_error_detail_errno("making the words of gangs");
    if (made != MAP_FAILED) munmap(made, bytes);
    shmi_descriptor_close(&fd);
    errno = saved;
    return SHM_ESYSTEM;
  }
  shmi_descriptor_close(&fd); /* whoever is to see it is forked with the mapping */
  shared = made;
  shared_bytes = bytes;
  helper_count = helpers;
  open_count = 0;
  memset(is_open, 0, sizeof is_open);
  shmi_gang_number_from(1);
  return SHM_OK;
}

void shmi_gang_destroy(void) {
  if (shared != NULL) munmap(shared, shared_bytes);
  shared = NULL;
  shared_bytes = 0;
}
