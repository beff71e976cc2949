/* listener -- see listener.h. */
#include "broker/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/error_detail.h"
#include "base/passing.h"
#include "broker/process_table.h"
#include "broker/quota.h"
#include "ipc/attach_handshake.h"
#include "ipc/scoreboard.h"
#include "memory/arena.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

enum {
  WAITING = 64,          /* guests that wait for a place */
  KNOCKS = 256,          /* that are heard at once: who knocks without end holds up nobody inside */
  GUESTS = WAITING + 16, /* so that who only asks for something finds room beside them */
  GROUPS = 64 /* of a user; more are counted first */
};
#define HELLO_NS UINT64_C(2000000000) /* how long a guest may stand there and say nothing */

typedef struct guest {
  int fd; /* -1: nobody */
  int has_said_hello, may_wait;
  char program[SHMI_GUEST_NAME_BYTES];
  uint64_t until_ns; /* sent away then; 0: never */
  uint64_t again_ns; /* not looked at before; 0: at any time */
} guest_t;

static const char CROWDED[] = "too many processes stand at the broker's door";
static const char NO_DESCRIPTORS[] = "the broker has no descriptors left: raise its ulimit -n";
static const char TOO_MANY_AT_ONCE[] =
    "more programs join at once than the broker's ulimit -n allows: connect again, or raise it";
static int door_fd = -1;
static int is_shut; /* nobody is let in any more */
#define AGAIN_NS UINT64_C(100000000) /* after a knock that could not be answered */
static uint64_t again_ns; /* when the door is opened again; 0: it is open */
static guest_t guests[GUESTS]; /* mean something while the door is open */

int shmi_door_open(int lent_fd) {
  if (lent_fd <= 0) return SHM_OK;
  is_shut = 0;
  again_ns = 0;
  for (int i = 0; i < GUESTS; i++) guests[i].fd = -1;
  door_fd = shmi_descriptor_own(fcntl(lent_fd, F_DUPFD_CLOEXEC, 0));
  if (door_fd < 0) {
    shmi_detail_errno("opening the door");
    return SHM_ESYSTEM;
  }
  fcntl(door_fd, F_SETFL, O_NONBLOCK);
  int status = shmi_crew_watch(door_fd, SHMI_WATCH_DOOR, 0);
  if (status == SHM_OK) shmi_door_look(-1); /* who has waited for this stands there now */
  return status;
}

int shmi_door_has_somebody(void) {
  for (int i = 0; door_fd >= 0 && i < GUESTS; i++) {
    if (guests[i].fd >= 0) return 1;
  }
  return 0;
}

static void send_away(guest_t *guest) {
  shmi_descriptor_close(&guest->fd); /* closing takes it out of the set */
}

void shmi_door_close(void) {
  for (int i = 0; door_fd >= 0 && i < GUESTS; i++) send_away(&guests[i]);
  shmi_descriptor_close(&door_fd);
}

static void tell_no(guest_t *guest, int status, const char *sentence) {
  shmi_welcome_t answer = {.magic = SHMI_GUEST_MAGIC,
                           .version = SHMI_GUEST_VERSION,
                           .status = status};
  snprintf(answer.sentence, sizeof answer.sentence, "%s", sentence);
  send(guest->fd, &answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT);
  send_away(guest);
}

static void refuse(guest_t *guest, int status, const char *sentence) {
  if (status != SHM_ESTOPPED) { /* that it ends, the log says once */
    shmi_crew_tell((shm_event_t){.kind = SHM_EVENT_CHILD_REFUSED, .exit_status = status});
  }
  tell_no(guest, status, sentence);
}

static void refuse_command(guest_t *guest, const shmi_hello_t *hello, int status,
                           const char *sentence) {
  if (hello->kind == SHMI_HELLO_SCALE) {
    shmi_detail_set("%s", sentence);
    shmi_crew_tell((shm_event_t){.kind = SHM_EVENT_SCALE_REFUSED,
                                 .index = hello->pool,
                                 .attempts = hello->helpers,
                                 .exit_status = status});
  }
  tell_no(guest, status, sentence);
}

void shmi_door_shut(void) {
  is_shut = 1;
  if (door_fd >= 0) shmi_door_look(-1); /* those who wait outside */
  for (int i = 0; door_fd >= 0 && i < GUESTS; i++) {
    if (guests[i].fd >= 0) refuse(&guests[i], SHM_ESTOPPED, "");
  }
}

/* The kernel's word for who stands there. */
static int peer_of(int fd, struct ucred *who) {
  socklen_t bytes = sizeof *who;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, who, &bytes) == 0;
}

static int may_command(int fd) {
  struct ucred who;
  return peer_of(fd, &who) && (who.uid == geteuid() || who.uid == 0);
}

/* Whether a group is one of those that whoever stands there has beside its first. */
static int is_member(int fd, gid_t wanted) {
  gid_t few[GROUPS], *groups = few, *many = NULL;
  socklen_t bytes = sizeof few;
  int got = getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, few, &bytes), found = 0;
  if (got != 0 && errno == ERANGE && bytes > sizeof few) { /* it says how many there are */
    groups = many = malloc(bytes);
    if (many != NULL) got = getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, many, &bytes);
  }
  for (size_t i = 0; got == 0 && i < bytes / sizeof *groups && !found; i++) {
    found = groups[i] == wanted;
  }
  free(many);
  return found;
}

static int may_enter(int fd) {
  if (may_command(fd)) return 1;
  struct ucred who;
  if (!peer_of(fd, &who)) return 0;
  gid_t wanted = (gid_t)shmi_crew.config.door_gid;
  return wanted != 0 && (who.gid == wanted || is_member(fd, wanted));
}

/* Whoever knocks waits outside until there may be a descriptor for it: who looked again at once would
 * do nothing else. */
static void open_later(void) {
  if (again_ns == 0) shmi_crew_unwatch(door_fd);
  again_ns = shmi_clock_ns() + AGAIN_NS;
}

static void open_again(uint64_t at_ns, uint64_t *next_ns) {
  if (again_ns == 0 || door_fd < 0) return;
  if (again_ns <= at_ns) {
    int status = shmi_crew_watch(door_fd, SHMI_WATCH_DOOR, 0);
    again_ns = status == SHM_OK ? 0 : at_ns + AGAIN_NS;
  }
  shmi_clock_earliest(next_ns, again_ns);
}

static int count_waiting(void) {
  int count = 0;
  for (int i = 0; i < GUESTS; i++) count += guests[i].fd >= 0 && guests[i].has_said_hello;
  return count;
}

static void open_to_all_who_knock(void) {
  for (int knocks = 0; knocks < KNOCKS; knocks++) { /* the others are reported again */
    int fd = shmi_descriptor_own(accept4(door_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) open_later();
      return;
    }
    guest_t *guest = NULL;
    for (int i = 0; i < GUESTS && guest == NULL; i++) {
      if (guests[i].fd < 0) guest = &guests[i];
    }
    guest_t crowded = {.fd = fd};
    if (is_shut) {
      refuse(&crowded, SHM_ESTOPPED, "");
      continue;
    }
    if (guest == NULL) {
      refuse(&crowded, SHM_ENO_CHILD_SLOT, CROWDED);
      continue;
    }
    *guest = (guest_t){.fd = fd, .until_ns = shmi_clock_ns() + HELLO_NS};
    if (!may_enter(fd)) {
      refuse(guest, SHM_EREFUSED, "the broker belongs to another user");
    } else if (shmi_crew_watch(fd, SHMI_WATCH_GUEST, (int)(guest - guests)) != SHM_OK) {
      send_away(guest);
    }
  }
}

static int free_slot(void) {
  for (int i = shmi_crew.config.child_count; i < shmi_crew.config.slot_count; i++) {
    if (shmi_crew.children[i].process.pid == 0 &&
        shmi_dispatch_child_state(shmi_crew.dispatch, i) == SHMI_PEER_NONE) {
      return i;
    }
  }
  return -1;
}

static int process_of(int fd, shmi_process_t *process) {
  struct ucred who;
  if (!peer_of(fd, &who)) return SHM_ESYSTEM;
  int pidfd = -1;
  socklen_t bytes = sizeof pidfd;
  /* The very process that connected, whatever its number is by now (Linux 6.5). */
  if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &bytes) == 0) {
    process->pid = who.pid;
    process->pidfd = shmi_descriptor_own(pidfd);
    if (process->pidfd < 0) return SHM_ESYSTEM;
    if (who.pid > 0) return SHM_OK;
    shmi_process_forget(process); /* it has no number here, by which it could be told of */
  }
  return who.pid > 0 ? shmi_process_open(who.pid, process) : SHM_EUNSUPPORTED;
}

/* As many of this user's descriptors are on their way as may be: they arrive in a moment. */
static void later(guest_t *guest) {
  if (guest->may_wait) guest->again_ns = shmi_clock_ns() + AGAIN_NS;
  else refuse(guest, SHM_EAGAIN, TOO_MANY_AT_ONCE);
}

/* Give the guest that slot. Its socket is closed, unless it waits for a better moment. */
static void let_in(guest_t *guest, int slot) {
  shmi_process_t process = {.pid = 0, .pidfd = -1};
  int towards[2], from[2], capacity;
  int status = process_of(guest->fd, &process);
  if (status != SHM_OK) {
    refuse(guest, status,
           status == SHM_EUNSUPPORTED
               ? "the broker cannot watch a process of another process namespace"
               : NO_DESCRIPTORS);
    return;
  }
  int page_fd = shmi_board_make_page(slot);
  status = page_fd >= 0 ? shmi_crew_two_pipes(towards, from, &capacity) : page_fd;
  if (status != SHM_OK) {
    shmi_descriptor_close(&page_fd);
    shmi_process_forget(&process);
    refuse(guest, status, NO_DESCRIPTORS);
    return;
  }
  struct ucred who = {.uid = (uid_t)-1};
  peer_of(guest->fd, &who);
  shm_quota_t quota = shmi_quota_of(who.uid, guest->program);
  uint32_t window = shmi_crew_window(shmi_crew.config.window, capacity);
  uint64_t arena_bytes = shmi_arena_bytes();
  if (quota.arena_bytes != 0 && quota.arena_bytes < arena_bytes) arena_bytes = quota.arena_bytes;
  shmi_welcome_t welcome = {
      .magic = SHMI_GUEST_MAGIC,
      .version = SHMI_GUEST_VERSION,
      .slot = slot,
      .generation = shmi_dispatch_child_generation(shmi_crew.dispatch, slot) + 1,
      .window = window,
      .arena_address = shmi_arena_address(slot),
      .arena_bytes = arena_bytes};
  int descriptors[SHMI_GUEST_DESCRIPTORS] = {
      [SHMI_GUEST_ARENA] = shmi_arena_descriptor(slot),
      [SHMI_GUEST_BOARD] = shmi_board_descriptor(),
      [SHMI_GUEST_PAGE] = page_fd,
      [SHMI_GUEST_REQUESTS] = from[1],
      [SHMI_GUEST_REPLIES] = towards[0],
      [SHMI_GUEST_MANIFEST] = shmi_crew.config.manifest_fd};
  int count = shmi_crew.config.manifest_fd > 0 ? SHMI_GUEST_DESCRIPTORS : SHMI_GUEST_MANIFEST;
  status = shmi_crew_admit_guest(slot, &process, from[0], towards[1]);
  int sent = SHM_OK;
  if (status == SHM_OK) {
    shmi_crew_child_t *child = &shmi_crew.children[slot];
    child->uid = who.uid;
    memcpy(child->program, guest->program, sizeof child->program);
    /* Before it can send anything. */
    shmi_dispatch_limit_child(shmi_crew.dispatch, slot, quota.window, quota.weight,
                              quota.parked_bytes);
    sent = shmi_passing_send(guest->fd, &welcome, sizeof welcome, descriptors, count);
  }
  /* Should it be gone already, or hear nothing, its pipe has ended, and the slot is freed by that. */
  shmi_descriptor_close(&page_fd);
  shmi_descriptor_close(&from[1]);
  shmi_descriptor_close(&towards[0]);
  if (status != SHM_OK) refuse(guest, status, "the broker could not watch this process");
  else if (sent == SHM_EAGAIN) later(guest);
  else send_away(guest);
}

static void serve(guest_t *guest) {
  guest->again_ns = 0;
  int slot = free_slot();
  if (slot >= 0) let_in(guest, slot);
  else if (!guest->may_wait) {
    char sentence[SHMI_GUEST_SENTENCE_BYTES];
    snprintf(sentence, sizeof sentence, "all %d slots of the broker are taken",
             shmi_crew.config.slot_count - shmi_crew.config.child_count);
    refuse(guest, SHM_ENO_CHILD_SLOT, sentence);
  } else if (count_waiting() > WAITING) {
    refuse(guest, SHM_ENO_CHILD_SLOT, CROWDED);
  }
}

/* Say how many helpers a pool has, and give it another number where that is asked for. */
static void serve_command(guest_t *guest, const shmi_hello_t *hello) {
  char sentence[SHMI_GUEST_SENTENCE_BYTES];
  int most, before = shmi_crew_wanted(hello->pool, &most), status = SHM_OK;
  if (before < 0) {
    refuse_command(guest, hello, SHM_EBAD_POOL, "");
    return;
  }
  if (hello->kind == SHMI_HELLO_SCALE) {
    if (!may_command(guest->fd)) {
      refuse_command(guest, hello, SHM_EREFUSED,
                     "the broker belongs to another user, who alone may scale it");
      return;
    }
    if (hello->helpers < 1 || hello->helpers > most) {
      snprintf(sentence, sizeof sentence,
               "the pool can have from 1 to %d helpers: start the broker with a larger "
               "--max-helpers to have more",
               most);
      refuse_command(guest, hello, SHM_EBAD_CONFIG, sentence);
      return;
    }
    status = shmi_crew_scale(hello->pool, hello->helpers);
    if (status != SHM_OK) {
      snprintf(sentence, sizeof sentence, "%s", shm_error_detail());
      refuse_command(guest, hello, status, sentence);
      return;
    }
  }
  if (hello->kind == SHMI_HELLO_RETIRE) {
    if (!may_command(guest->fd)) {
      refuse_command(guest, hello, SHM_EREFUSED,
                     "the broker belongs to another user, who alone may have it end");
      return;
    }
    if (shmi_crew.config.persistent != SHM_UNTIL_TOLD) {
      refuse_command(guest, hello, SHM_EBAD_CONFIG, "the broker ends with who started it");
      return;
    }
    shmi_crew.config.idle_ns = 1; /* those who have joined stay as long as they like */
  }
  shmi_welcome_t answer = {.magic = SHMI_GUEST_MAGIC,
                           .version = SHMI_GUEST_VERSION,
                           .helpers_before = before,
                           .helpers_now = shmi_crew_wanted(hello->pool, &most)};
  int manifest_fd = shmi_crew.config.manifest_fd;
  shmi_passing_send(guest->fd, &answer, sizeof answer, &manifest_fd, manifest_fd > 0);
  send_away(guest);
}

static void hear(guest_t *guest) {
  shmi_hello_t hello;
  ssize_t got = recv(guest->fd, &hello, sizeof hello, MSG_DONTWAIT | MSG_TRUNC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0 || guest->has_said_hello) { /* it left, or talks where it should wait */
    send_away(guest);
    return;
  }
  if (got != sizeof hello || hello.magic != SHMI_GUEST_MAGIC ||
      hello.version != SHMI_GUEST_VERSION) {
    refuse(guest, SHM_EREFUSED, "the broker is of another version of shmgpu");
    return;
  }
  if (hello.kind != SHMI_HELLO_JOIN) {
    serve_command(guest, &hello);
    return;
  }
  guest->has_said_hello = 1;
  memcpy(guest->program, hello.program, sizeof guest->program);
  guest->program[sizeof guest->program - 1] = '\0';
  guest->may_wait = hello.wait_ns != 0;
  guest->until_ns = hello.wait_ns < 0 ? 0 : shmi_clock_ns() + (uint64_t)hello.wait_ns;
  serve(guest);
}

void shmi_door_look(int guest) {
  if (guest < 0) open_to_all_who_knock();
  else if (guests[guest].fd >= 0) hear(&guests[guest]);
}

void shmi_door_slot_freed(void) {
  for (int i = 0; door_fd >= 0 && i < GUESTS; i++) {
    if (guests[i].fd >= 0 && guests[i].has_said_hello && guests[i].again_ns == 0) serve(&guests[i]);
  }
}

void shmi_door_timers(uint64_t at_ns, uint64_t *next_ns) {
  open_again(at_ns, next_ns);
  for (int i = 0; door_fd >= 0 && i < GUESTS; i++) {
    guest_t *guest = &guests[i];
    if (guest->fd >= 0 && guest->again_ns != 0 && guest->again_ns <= at_ns) serve(guest);
    if (guest->fd < 0) continue;
    shmi_clock_earliest(next_ns, guest->again_ns);
    if (guest->until_ns == 0) continue;
    if (guest->until_ns > at_ns) {
      shmi_clock_earliest(next_ns, guest->until_ns);
    } else if (guest->has_said_hello) {
      refuse(guest, SHM_ENO_CHILD_SLOT, "no slot of the broker became free in time");
    } else {
      send_away(guest);
    }
  }
}

/* ---- quotas ---- */

int shm_set_quotas(const shm_quota_t *rows, int count) {
  int status = shmi_quota_set(rows, count);
  if (status != SHM_OK) return status;
  for (int i = 0; shmi_crew.dispatch != NULL && i < shmi_crew.config.slot_count; i++) {
    const shmi_crew_child_t *child = &shmi_crew.children[i];
    if (!child->is_guest || child->process.pid == 0) continue;
    shm_quota_t quota = shmi_quota_of(child->uid, child->program);
    shmi_dispatch_limit_child(shmi_crew.dispatch, i, quota.window, quota.weight,
                              quota.parked_bytes);
  }
  return SHM_OK;
}
