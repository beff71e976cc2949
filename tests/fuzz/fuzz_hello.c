/* fuzz_hello -- whatever clients send to the listener, each hears at most one answer, only those who
 * asked to join get a slot, and nothing of them stays open.
 *
 * The listener itself, between real sockets and a process table of a few lines. Input: steps of
 * clients, each a byte for what is done and one for whom; see the cases below.
 */
#define shmi_listener_open fuzz_listener_open
#define shmi_listener_shut fuzz_listener_shut
#define shmi_listener_close fuzz_listener_close
#define shmi_listener_read fuzz_listener_read
#define shmi_listener_slot_freed fuzz_listener_slot_freed
#define shmi_listener_has_clients fuzz_listener_has_clients
#define shmi_listener_timers fuzz_listener_timers
#define shm_set_quotas fuzz_set_quotas
#define shmi_process_table_config fuzz_config
#define shmi_process_table_dispatch fuzz_dispatch
#define shmi_process_table_report fuzz_report
#define shmi_process_table_watch fuzz_watch
#define shmi_process_table_unwatch fuzz_unwatch
#define shmi_process_table_wanted fuzz_wanted
#define shmi_process_table_scale fuzz_scale
#define shmi_process_table_pause fuzz_pause
#define shmi_process_table_retire fuzz_retire
#define shmi_process_table_free_slot fuzz_free_slot
#define shmi_process_table_admit_client fuzz_admit_client
#define shmi_process_table_client fuzz_client
#define shmi_scoreboard_descriptor fuzz_scoreboard
#define shmi_scoreboard_make_page fuzz_make_page
#define shmi_arena_descriptor fuzz_arena
#define shmi_arena_address fuzz_arena_address
#define shmi_arena_bytes fuzz_arena_bytes
#define shmi_dispatch_child_generation fuzz_generation
#define shmi_dispatch_limit_child fuzz_limit

#include "broker/listener.c"

#include <sys/un.h>

#include "fuzz.h"

enum { PLAYERS = 6, POOLS = 2, MOST_HELPERS = 3, STEPS = 64 };

typedef struct player {
  int fd, heard, may_join; /* the first that it said was a hello, and asked to join */
  int has_spoken, must_go; /* who speaks again while it waits is sent away */
} player_t;

static player_t players[PLAYERS];
static struct sockaddr_un address;
static socklen_t address_bytes;
static int listening = -1, null_fd = -1, slots, admitted, helpers[POOLS], retired;
static shm_config_t config = {.slot_count = 4, .window = 8, .persistent = SHM_UNTIL_TOLD};

/* ---- what the listener asks of the broker ---- */

const shm_config_t *fuzz_config(void) { return &config; }
shmi_dispatch_t *fuzz_dispatch(void) { return NULL; }
void fuzz_report(shm_event_t event) { (void)event; }
int fuzz_watch(int fd, int client) {
  REQUIRE(fd >= 0 && client < CLIENTS);
  return SHM_OK;
}
void fuzz_unwatch(int fd) { (void)fd; }
int fuzz_wanted(int pool, int *most) {
  *most = MOST_HELPERS;
  return pool >= 0 && pool < POOLS ? helpers[pool] : -1;
}
void fuzz_pause(int pool, int on) { REQUIRE(pool >= 0 && pool < POOLS && on == (on != 0)); }
int fuzz_scale(int pool, int count) {
  REQUIRE(pool >= 0 && pool < POOLS && count >= 1 && count <= MOST_HELPERS);
  helpers[pool] = count;
  return SHM_OK;
}
void fuzz_retire(void) { retired++; }
int fuzz_free_slot(void) { return slots > 0 ? slots - 1 : -1; }
int fuzz_admit_client(int index, shmi_process_t *client, uint32_t uid, const char *program,
                      int request_fd, int reply_fd) {
  REQUIRE(index == slots - 1 && uid == getuid() && client->pid == getpid());
  REQUIRE(memchr(program, 0, SHMI_ATTACH_NAME_BYTES) != NULL);
  slots--;
  admitted++;
  shmi_process_forget(client);
  shmi_descriptor_close(&request_fd);
  shmi_descriptor_close(&reply_fd);
  return SHM_OK;
}
const char *fuzz_client(int index, uint32_t *uid) {
  *uid = (uint32_t)index;
  return NULL;
}
int fuzz_scoreboard(void) { return null_fd; }
int fuzz_make_page(int child) { return child < 0 ? -1 : shmi_descriptor_own(dup(null_fd)); }
int fuzz_arena(int child) { return child < 0 ? -1 : null_fd; }
uint64_t fuzz_arena_address(int child) { return (uint64_t)child << 20; }
size_t fuzz_arena_bytes(void) { return 1 << 20; }
uint32_t fuzz_generation(const shmi_dispatch_t *dispatch, int child) {
  return dispatch == NULL ? (uint32_t)child : 0;
}
void fuzz_limit(shmi_dispatch_t *dispatch, int child, const shm_quota_t *quota) {
  REQUIRE(dispatch == NULL && child >= 0 && quota != NULL);
}

/* ---- clients ---- */

static void set_up(void) {
  null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  struct sockaddr_un any = {.sun_family = AF_UNIX};
  REQUIRE(null_fd >= 0 && listening >= 0);
  REQUIRE(bind(listening, (struct sockaddr *)&any, sizeof any.sun_family) == 0);
  address_bytes = sizeof address;
  REQUIRE(getsockname(listening, (struct sockaddr *)&address, &address_bytes) == 0);
  REQUIRE(listen(listening, PLAYERS) == 0);
}

static void leave(player_t *player) {
  if (player->fd >= 0) close(player->fd);
  player->fd = -1;
}

static void come(player_t *player) {
  if (player->fd >= 0) return;
  *player = (player_t){.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  REQUIRE(player->fd >= 0);
  if (connect(player->fd, (struct sockaddr *)&address, address_bytes) != 0) leave(player);
}

/* How it says it: 1: with another first word; 2: of another length. */
static void speak(player_t *player, int how, input_t *in) {
  char said[2 * sizeof(shmi_hello_t)] = {0};
  shmi_hello_t *hello = (shmi_hello_t *)said;
  hello->magic = how & 1 ? (uint32_t)take(in, 4) : SHMI_ATTACH_MAGIC;
  hello->version = how & 1 ? (uint32_t)take(in, 1) : SHMI_ATTACH_VERSION;
  hello->kind = (int8_t)take(in, 1);
  hello->pool = (int8_t)take(in, 1);
  hello->helpers = (int8_t)take(in, 1);
  hello->wait_ns = (int64_t)take(in, 8);
  memset(hello->program, (int)take(in, 1), sizeof hello->program); /* none ends it */
  size_t length = how & 2 ? (size_t)take(in, 1) : sizeof *hello;
  if (length > sizeof said) length = sizeof said;
  if (player->fd < 0 || send(player->fd, said, length, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
  if (!player->has_spoken) {
    player->may_join = length == sizeof *hello && hello->magic == SHMI_ATTACH_MAGIC &&
                       hello->version == SHMI_ATTACH_VERSION && hello->kind == SHMI_HELLO_JOIN;
  }
  player->must_go = player->has_spoken;
  player->has_spoken = 1;
}

static void hear_answer(player_t *player) {
  while (player->fd >= 0) {
    shmi_welcome_t welcome;
    int descriptors[SHMI_PASSING_MOST];
    int count = shmi_passing_receive(player->fd, &welcome, sizeof welcome, descriptors,
                                     SHMI_PASSING_MOST);
    if (count == SHM_EAGAIN || count == SHM_EINTR) return;
    if (count == SHM_EBROKER_DIED || count == SHM_ESYSTEM) {
      leave(player);
      return;
    }
    REQUIRE(count >= 0 && player->heard++ == 0);
    REQUIRE(welcome.magic == SHMI_ATTACH_MAGIC && welcome.version == SHMI_ATTACH_VERSION);
    REQUIRE(memchr(welcome.sentence, 0, sizeof welcome.sentence) != NULL);
    REQUIRE(welcome.status <= 0 && (welcome.status == SHM_OK || count == 0));
    REQUIRE(count == 0 || (player->may_join && count == SHMI_ATTACH_MANIFEST));
    for (int i = 0; i < count; i++) shmi_descriptor_close(&descriptors[i]);
  }
}

static void serve_all(void) {
  fuzz_listener_read(-1);
  for (int i = 0; i < CLIENTS; i++) fuzz_listener_read(i);
  for (int i = 0; i < PLAYERS; i++) {
    hear_answer(&players[i]);
    REQUIRE(!players[i].must_go || (players[i].fd < 0 && players[i].heard == 0));
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (listening < 0) set_up();
  input_t in = {data, data + size};
  int before = shmi_descriptor_count(), given = slots = (int)take(&in, 1) % 3;
  admitted = retired = 0;
  for (int i = 0; i < POOLS; i++) helpers[i] = 1;
  for (int i = 0; i < PLAYERS; i++) players[i] = (player_t){.fd = -1};
  REQUIRE(fuzz_listener_open(listening) == SHM_OK);
  for (int step = 0; in.at < in.end && step < STEPS; step++) {
    int what = (int)take(&in, 1);
    player_t *player = &players[take(&in, 1) % PLAYERS];
    uint64_t next_ns = 0;
    switch (what % 6) {
      case 0: come(player); break;
      case 1: speak(player, what / 6 % 4, &in); break;
      case 2: leave(player); break;
      case 3:
        slots++, given++;
        fuzz_listener_slot_freed();
        break;
      case 4: fuzz_listener_timers(shmi_clock_ns() + take(&in, 5), &next_ns); break;
      default: come(player), speak(player, 0, &in);
    }
    serve_all();
    REQUIRE(admitted + slots == given);
  }
  fuzz_listener_shut();
  REQUIRE(!fuzz_listener_has_clients());
  for (int i = 0; i < PLAYERS; i++) {
    hear_answer(&players[i]);
    REQUIRE(players[i].fd < 0);
  }
  fuzz_listener_close();
  REQUIRE(shmi_descriptor_count() == before);
  return 0;
}
