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
  WAITING = 64,           /* clients that wait for a slot */
  ACCEPTS = 256,          /* at once: a flood of connections must not hold up admitted clients */
  CLIENTS = WAITING + 16, /* beside those that wait, clients that only ask something find room */
  GROUPS = 64             /* of a user; if there are more, they are counted first */
};
#define HELLO_NS UINT64_C(2000000000) /* how long a client may be connected and send nothing */
/* How long a client that does not wait for others to leave waits for a slot to be cleared whose
 * program has left: that is not seen at once, and helpers first finish what they hold of it. */
#define CLEARED_NS UINT64_C(2000000000)

typedef struct client {
  int fd; /* -1: nobody */
  int has_said_hello, may_wait;
  char program[SHMI_ATTACH_NAME_BYTES];
  uint64_t until_ns; /* refused then; 0: never */
  uint64_t again_ns; /* not served before then; 0: at any time */
} client_t;

static const char CROWDED[] = "too many processes are connecting to the broker";
static const char NO_DESCRIPTORS[] = "the broker has no descriptors left: raise its ulimit -n";
static const char TOO_MANY_AT_ONCE[] =
    "more programs join at once than the broker's ulimit -n allows: connect again, or raise it";
static int listener_fd = -1;
static int is_shut; /* nobody is admitted any more */
#define AGAIN_NS UINT64_C(100000000) /* after a connection that could not be accepted */
static uint64_t again_ns; /* when the listener is watched again; 0: it is being watched */
static client_t clients[CLIENTS]; /* valid while the listener is open */

int shmi_listener_open(int lent_fd) {
  if (lent_fd <= 0) return SHM_OK;
  is_shut = 0;
  again_ns = 0;
  for (int i = 0; i < CLIENTS; i++) clients[i].fd = -1;
  listener_fd = shmi_descriptor_own(fcntl(lent_fd, F_DUPFD_CLOEXEC, 0));
  if (listener_fd < 0) {
    shmi_error_detail_errno("opening the listener");
    return SHM_ESYSTEM;
  }
  fcntl(listener_fd, F_SETFL, O_NONBLOCK);
  int status = shmi_process_table_watch(listener_fd, -1);
  if (status == SHM_OK) shmi_listener_read(-1); /* clients may be waiting in the backlog */
  return status;
}

int shmi_listener_has_clients(void) {
  for (int i = 0; listener_fd >= 0 && i < CLIENTS; i++) {
    if (clients[i].fd >= 0) return 1;
  }
  return 0;
}

static void send_away(client_t *client) {
  shmi_process_table_unwatch(client->fd);
  shmi_descriptor_close(&client->fd);
}

void shmi_listener_close(void) {
  for (int i = 0; listener_fd >= 0 && i < CLIENTS; i++) send_away(&clients[i]);
  shmi_descriptor_close(&listener_fd);
}

static void tell_no(client_t *client, int status, const char *sentence) {
  shmi_welcome_t answer = {.magic = SHMI_ATTACH_MAGIC,
                           .version = SHMI_ATTACH_VERSION,
                           .status = status};
  snprintf(answer.sentence, sizeof answer.sentence, "%s", sentence);
  send(client->fd, &answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT);
  send_away(client);
}

static void refuse(client_t *client, int status, const char *sentence) {
  if (status != SHM_ESTOPPED) { /* the log reports once that the broker is ending */
    shmi_process_table_report((shm_event_t){.kind = SHM_EVENT_CHILD_REFUSED, .exit_status = status});
  }
  tell_no(client, status, sentence);
}

static void refuse_command(client_t *client, const shmi_hello_t *hello, int status,
                           const char *sentence) {
  if (hello->kind == SHMI_HELLO_SCALE) {
    shmi_error_detail_set("%s", sentence);
    shmi_process_table_report((shm_event_t){.kind = SHM_EVENT_SCALE_REFUSED,
                                 .index = hello->pool,
                                 .attempts = hello->helpers,
                                 .exit_status = status});
  }
  tell_no(client, status, sentence);
}

void shmi_listener_shut(void) {
  is_shut = 1;
  if (listener_fd >= 0) shmi_listener_read(-1); /* those in the backlog */
  for (int i = 0; listener_fd >= 0 && i < CLIENTS; i++) {
    if (clients[i].fd >= 0) refuse(&clients[i], SHM_ESTOPPED, "");
  }
}

/* What the kernel says of the process at the other end. */
static int peer_of(int fd, struct ucred *who) {
  socklen_t bytes = sizeof *who;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, who, &bytes) == 0;
}

static int may_command(int fd) {
  struct ucred who;
  return peer_of(fd, &who) && (who.uid == geteuid() || who.uid == 0);
}

/* Whether the process at the other end has this group among its supplementary ones. */
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
  gid_t wanted = (gid_t)shmi_process_table_config()->listener_gid;
  return wanted != 0 && (who.gid == wanted || is_member(fd, wanted));
}

/* No descriptor is left: connections wait in the backlog for a while. A parent that tried again at
 * once would do nothing else. */
static void open_later(void) {
  if (again_ns == 0) shmi_process_table_unwatch(listener_fd);
  again_ns = shmi_clock_ns() + AGAIN_NS;
}

static void open_again(uint64_t at_ns, uint64_t *next_ns) {
  if (again_ns == 0 || listener_fd < 0) return;
  if (again_ns <= at_ns) {
    int status = shmi_process_table_watch(listener_fd, -1);
    again_ns = status == SHM_OK ? 0 : at_ns + AGAIN_NS;
  }
  shmi_clock_earliest(next_ns, again_ns);
}

static int count_waiting(void) {
  int count = 0;
  for (int i = 0; i < CLIENTS; i++) count += clients[i].fd >= 0 && clients[i].has_said_hello;
  return count;
}

static void accept_all(void) {
  for (int accepted = 0; accepted < ACCEPTS; accepted++) { /* the poll set reports the rest again */
    int fd = shmi_descriptor_own(accept4(listener_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) open_later();
      return;
    }
    client_t *client = NULL;
    for (int i = 0; i < CLIENTS && client == NULL; i++) {
      if (clients[i].fd < 0) client = &clients[i];
    }
    client_t crowded = {.fd = fd};
    if (is_shut) {
      refuse(&crowded, SHM_ESTOPPED, "");
      continue;
    }
    if (client == NULL) {
      refuse(&crowded, SHM_ENO_CHILD_SLOT, CROWDED);
      continue;
    }
    *client = (client_t){.fd = fd, .until_ns = shmi_clock_ns() + HELLO_NS};
    if (!may_enter(fd)) {
      refuse(client, SHM_EREFUSED, "the broker belongs to another user");
    } else if (shmi_process_table_watch(fd, (int)(client - clients)) != SHM_OK) {
      send_away(client);
    }
  }
}

static int process_of(int fd, shmi_process_t *process) {
  struct ucred who;
  if (!peer_of(fd, &who)) return SHM_ESYSTEM;
  int pidfd = -1;
  socklen_t bytes = sizeof pidfd;
  /* The very process that connected, even if its pid has been reused since (Linux 6.5). */
  if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &bytes) == 0) {
    process->pid = who.pid;
    process->pidfd = shmi_descriptor_own(pidfd);
    if (process->pidfd < 0) return SHM_ESYSTEM;
    if (who.pid > 0) return SHM_OK;
    shmi_process_forget(process); /* it has no pid in our namespace, so no event could name it */
  }
  return who.pid > 0 ? shmi_process_open(who.pid, process) : SHM_EUNSUPPORTED;
}

/* This user has as many descriptors in transit as the kernel allows: they arrive in a moment. */
static void later(client_t *client) {
  if (client->may_wait) client->again_ns = shmi_clock_ns() + AGAIN_NS;
  else refuse(client, SHM_EAGAIN, TOO_MANY_AT_ONCE);
}

/* Give the client that slot. Its socket is closed, unless it has to try again later. */
static void let_in(client_t *client, int slot) {
  const shm_config_t *config = shmi_process_table_config();
  shmi_dispatch_t *dispatch = shmi_process_table_dispatch();
  shmi_process_t process = {.pid = 0, .pidfd = -1};
  int towards[2], from[2], capacity;
  int status = process_of(client->fd, &process);
  if (status != SHM_OK) {
    refuse(client, status,
           status == SHM_EUNSUPPORTED
               ? "the broker cannot watch a process of another process namespace"
               : NO_DESCRIPTORS);
    return;
  }
  int page_fd = shmi_scoreboard_make_page(slot);
  status = page_fd >= 0 ? shmi_process_table_two_pipes(towards, from, &capacity) : page_fd;
  if (status != SHM_OK) {
    shmi_descriptor_close(&page_fd);
    shmi_process_forget(&process);
    refuse(client, status, NO_DESCRIPTORS);
    return;
  }
  struct ucred who = {.uid = (uid_t)-1};
  peer_of(client->fd, &who);
  shm_quota_t quota = shmi_quota_of(who.uid, client->program);
  uint32_t window = shmi_process_table_window(config->window, capacity);
  uint64_t arena_bytes = shmi_arena_bytes();
  if (quota.arena_bytes != 0 && quota.arena_bytes < arena_bytes) arena_bytes = quota.arena_bytes;
  shmi_welcome_t welcome = {
      .magic = SHMI_ATTACH_MAGIC,
      .version = SHMI_ATTACH_VERSION,
      .slot = slot,
      .generation = shmi_dispatch_child_generation(dispatch, slot) + 1,
      .window = window,
      .arena_address = shmi_arena_address(slot),
      .arena_bytes = arena_bytes};
  int descriptors[SHMI_ATTACH_DESCRIPTORS] = {
      [SHMI_ATTACH_ARENA] = shmi_arena_descriptor(slot),
      [SHMI_ATTACH_SCOREBOARD] = shmi_scoreboard_descriptor(),
      [SHMI_ATTACH_PAGE] = page_fd,
      [SHMI_ATTACH_REQUESTS] = from[1],
      [SHMI_ATTACH_REPLIES] = towards[0],
      [SHMI_ATTACH_MANIFEST] = config->manifest_fd};
  int count = config->manifest_fd > 0 ? SHMI_ATTACH_DESCRIPTORS : SHMI_ATTACH_MANIFEST;
  status = shmi_process_table_admit_client(slot, &process, who.uid, client->program, from[0],
                                           towards[1]);
  int sent = SHM_OK;
  if (status == SHM_OK) {
    /* Before the client can send anything. */
    shmi_dispatch_limit_child(dispatch, slot, &quota);
    sent = shmi_passing_send(client->fd, &welcome, sizeof welcome, descriptors, count);
  }
  /* If it is gone already, or did not get the welcome, its pipe ends, and that frees the slot. */
  shmi_descriptor_close(&page_fd);
  shmi_descriptor_close(&from[1]);
  shmi_descriptor_close(&towards[0]);
  if (status != SHM_OK) refuse(client, status, "the broker could not watch this process");
  else if (sent == SHM_EAGAIN) later(client);
  else send_away(client);
}

static void serve(client_t *client) {
  client->again_ns = 0;
  int slot = shmi_process_table_free_slot();
  if (slot < 0 && !client->may_wait && shmi_process_table_frees_a_slot()) {
    client->may_wait = 1;
    client->until_ns = shmi_clock_ns() + CLEARED_NS;
  }
  if (slot >= 0) {
    let_in(client, slot);
  } else if (!client->may_wait) {
    char sentence[SHMI_ATTACH_SENTENCE_BYTES];
    snprintf(sentence, sizeof sentence, "all %d slots of the broker are taken",
             shmi_process_table_config()->slot_count - shmi_process_table_config()->child_count);
    refuse(client, SHM_ENO_CHILD_SLOT, sentence);
  } else if (count_waiting() > WAITING) {
    refuse(client, SHM_ENO_CHILD_SLOT, CROWDED);
  }
}

/* ---- commands ---- */

/* Each carries out what it is named for, or says in a sentence why not. */

static int scale(const shmi_hello_t *hello, char sentence[SHMI_ATTACH_SENTENCE_BYTES]) {
  int most;
  shmi_process_table_wanted(hello->pool, &most);
  if (hello->helpers < 1 || hello->helpers > most) {
    snprintf(sentence, SHMI_ATTACH_SENTENCE_BYTES,
             "the pool can have from 1 to %d helpers: to have more, start the broker with %s", most,
             shmi_process_table_config()->persistent == SHM_UNTIL_TOLD ? "a larger --max-helpers"
                                                                       : "more helpers");
    return SHM_EBAD_CONFIG;
  }
  int status = shmi_process_table_scale(hello->pool, hello->helpers);
  if (status != SHM_OK) {
    snprintf(sentence, SHMI_ATTACH_SENTENCE_BYTES, "%s", shm_error_detail());
  }
  return status;
}

static int retire(const shmi_hello_t *hello, char sentence[SHMI_ATTACH_SENTENCE_BYTES]) {
  (void)hello;
  if (shmi_process_table_config()->persistent != SHM_UNTIL_TOLD) {
    snprintf(sentence, SHMI_ATTACH_SENTENCE_BYTES, "the broker ends with who started it");
    return SHM_EBAD_CONFIG;
  }
  shmi_process_table_retire(); /* attached programs may stay as long as they like */
  return SHM_OK;
}

static int pause_pool(const shmi_hello_t *hello, char sentence[SHMI_ATTACH_SENTENCE_BYTES]) {
  (void)sentence;
  shmi_process_table_pause(hello->pool, hello->kind == SHMI_HELLO_PAUSE);
  return SHM_OK;
}

typedef struct command {
  int (*run)(const shmi_hello_t *hello, char sentence[SHMI_ATTACH_SENTENCE_BYTES]);
  const char *whose; /* of the sentence that others get: who alone may ... */
} command_t;

static const command_t COMMANDS[] = {[SHMI_HELLO_SCALE] = {scale, "scale it"},
                                     [SHMI_HELLO_RETIRE] = {retire, "have it end"},
                                     [SHMI_HELLO_PAUSE] = {pause_pool, "pause it"},
                                     [SHMI_HELLO_RESUME] = {pause_pool, "have it go on"}};

static int carry_out(const client_t *client, const shmi_hello_t *hello,
                     char sentence[SHMI_ATTACH_SENTENCE_BYTES]) {
  int is_known = hello->kind >= 0 && hello->kind < (int)(sizeof COMMANDS / sizeof *COMMANDS);
  const command_t *command = is_known ? &COMMANDS[hello->kind] : NULL;
  if (command == NULL || command->run == NULL) return SHM_OK; /* it only asks */
  if (may_command(client->fd)) return command->run(hello, sentence);
  snprintf(sentence, SHMI_ATTACH_SENTENCE_BYTES,
           "the broker belongs to another user, who alone may %s", command->whose);
  return SHM_EREFUSED;
}

/* Answer how many helpers a pool has, after carrying out what is asked for. */
static void serve_command(client_t *client, const shmi_hello_t *hello) {
  char sentence[SHMI_ATTACH_SENTENCE_BYTES] = "";
  int most, before = shmi_process_table_wanted(hello->pool, &most);
  int status = before >= 0 ? carry_out(client, hello, sentence) : SHM_EBAD_POOL;
  if (status != SHM_OK) {
    refuse_command(client, hello, status, sentence);
    return;
  }
  shmi_welcome_t answer = {.magic = SHMI_ATTACH_MAGIC,
                           .version = SHMI_ATTACH_VERSION,
                           .helpers_before = before,
                           .helpers_now = shmi_process_table_wanted(hello->pool, &most)};
  int manifest_fd = shmi_process_table_config()->manifest_fd;
  shmi_passing_send(client->fd, &answer, sizeof answer, &manifest_fd, manifest_fd > 0);
  send_away(client);
}

static void hear(client_t *client) {
  shmi_hello_t hello;
  ssize_t got = recv(client->fd, &hello, sizeof hello, MSG_DONTWAIT | MSG_TRUNC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0 || client->has_said_hello) { /* it left, or sends where it should wait */
    send_away(client);
    return;
  }
  if (got != sizeof hello || hello.magic != SHMI_ATTACH_MAGIC ||
      hello.version != SHMI_ATTACH_VERSION) {
    refuse(client, SHM_EREFUSED, "the broker is of another version of shmgpu");
    return;
  }
  if (hello.kind != SHMI_HELLO_JOIN) {
    serve_command(client, &hello);
    return;
  }
  client->has_said_hello = 1;
  memcpy(client->program, hello.program, sizeof client->program);
  client->program[sizeof client->program - 1] = '\0';
  client->may_wait = hello.wait_ns != 0;
  client->until_ns = hello.wait_ns < 0 ? 0 : shmi_clock_ns() + (uint64_t)hello.wait_ns;
  serve(client);
}

void shmi_listener_read(int client) {
  if (client < 0) accept_all();
  else if (clients[client].fd >= 0) hear(&clients[client]);
}

void shmi_listener_slot_freed(void) {
  for (int i = 0; listener_fd >= 0 && i < CLIENTS; i++) {
    if (clients[i].fd >= 0 && clients[i].has_said_hello && clients[i].again_ns == 0) serve(&clients[i]);
  }
}

void shmi_listener_timers(uint64_t at_ns, uint64_t *next_ns) {
  open_again(at_ns, next_ns);
  for (int i = 0; listener_fd >= 0 && i < CLIENTS; i++) {
    client_t *client = &clients[i];
    if (client->fd >= 0 && client->again_ns != 0 && client->again_ns <= at_ns) serve(client);
    if (client->fd < 0) continue;
    shmi_clock_earliest(next_ns, client->again_ns);
    if (client->until_ns == 0) continue;
    if (client->until_ns > at_ns) {
      shmi_clock_earliest(next_ns, client->until_ns);
    } else if (client->has_said_hello) {
      refuse(client, SHM_ENO_CHILD_SLOT, "no slot of the broker became free in time");
    } else {
      send_away(client);
    }
  }
}

/* ---- quotas ---- */

int shm_set_quotas(const shm_quota_t *rows, int count) {
  int status = shmi_quota_set(rows, count);
  if (status != SHM_OK) return status;
  shmi_dispatch_t *dispatch = shmi_process_table_dispatch();
  int slots = dispatch != NULL ? shmi_process_table_config()->slot_count : 0;
  for (int i = 0; i < slots; i++) {
    uint32_t uid;
    const char *program = shmi_process_table_client(i, &uid);
    if (program == NULL) continue;
    shm_quota_t quota = shmi_quota_of(uid, program);
    shmi_dispatch_limit_child(dispatch, i, &quota);
  }
  return SHM_OK;
}
