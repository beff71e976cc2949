/* attach -- see attach.h. */
#include "child/attach.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/error_detail.h"
#include "base/passing.h"
#include "child/heap.h"
#include "child/port.h"
#include "ipc/attach_handshake.h"
#include "ipc/function_table.h"
#include "ipc/pipe.h"
#include "ipc/scoreboard.h"
#include "memory/arena.h"
#include "process/role.h"

enum { HEED_NS = 100000000, ANSWER_NS = 2000000000 };

static int is_member;
static pid_t joining;         /* the process that has a thread in shm_join; 0: none has */
static ino_t asked;           /* the socket where a hello was sent and no answer has come; 0: none */
static uint64_t answer_by_ns; /* the deadline for that answer; 0: none */

int shmi_attach_is_client(void) { return is_member; }

static int say(int fd, shmi_hello_t *hello) {
  hello->magic = SHMI_ATTACH_MAGIC;
  hello->version = SHMI_ATTACH_VERSION;
  ssize_t sent;
  do {
    sent = send(fd, hello, sizeof *hello, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  /* A broker that refuses at once has closed its end already: its answer can still be read. */
  if (sent == (ssize_t)sizeof *hello || errno == EPIPE || errno == ECONNRESET) return SHM_OK;
  shmi_error_detail_errno("saying hello to the broker");
  return SHM_EBROKER_DIED;
}

static int say_hello(int fd, const char *program, int64_t wait_ns) {
  shmi_hello_t hello = {.kind = SHMI_HELLO_JOIN, .wait_ns = wait_ns};
  snprintf(hello.program, sizeof hello.program, "%s", program != NULL ? program : "");
  return say(fd, &hello);
}

static void close_all(int descriptors[SHMI_ATTACH_DESCRIPTORS]) {
  for (int i = 0; i < SHMI_ATTACH_DESCRIPTORS; i++) shmi_descriptor_close(&descriptors[i]);
}

/* Read the answer and the descriptors that come with it: how many, or a negative status and
 * none. */
static int hear(int fd, shmi_welcome_t *welcome, int descriptors[SHMI_ATTACH_DESCRIPTORS]) {
  int count =
      shmi_passing_receive(fd, welcome, sizeof *welcome, descriptors, SHMI_ATTACH_DESCRIPTORS);
  if (count >= 0 && (welcome->magic != SHMI_ATTACH_MAGIC || welcome->version != SHMI_ATTACH_VERSION)) {
    close_all(descriptors);
    count = SHM_EREFUSED;
  }
  if (count >= 0) welcome->sentence[sizeof welcome->sentence - 1] = '\0';
  if (count == SHM_EREFUSED) {
    shmi_error_detail_set("%s", "what it answers is not what a broker of this version says");
  }
  return count;
}

/* Whoever listens there may write anything: an unknown status is not a success. */
static int refusal_of(const shmi_welcome_t *welcome) {
  return welcome->status < 0 ? welcome->status : SHM_EREFUSED;
}

/* Descriptors that it takes over are set to -1. */
static int become_member(const shmi_welcome_t *welcome, int descriptors[], int heeds_signals) {
  if (welcome->window < 1 || welcome->window > SHM_MAX_WINDOW) {
    shmi_error_detail_set("it gives a window of %u messages", welcome->window);
    return SHM_EREFUSED;
  }
  shmi_role_set(SHM_ROLE_CHILD, welcome->slot);
  int status = shmi_arena_join(descriptors[SHMI_ATTACH_ARENA], welcome->slot,
                               welcome->arena_address, welcome->arena_bytes);
  if (status == SHM_OK) {
    status = shmi_scoreboard_join(descriptors[SHMI_ATTACH_SCOREBOARD], welcome->slot,
                             descriptors[SHMI_ATTACH_PAGE]);
  }
  if (status == SHM_OK) {
    status = shmi_port_open(descriptors[SHMI_ATTACH_REQUESTS], descriptors[SHMI_ATTACH_REPLIES],
                            welcome->window, welcome->slot);
    if (status == SHM_OK) descriptors[SHMI_ATTACH_REQUESTS] = descriptors[SHMI_ATTACH_REPLIES] = -1;
  }
  if (status == SHM_OK) {
    status = shmi_heap_open(shmi_arena_address(welcome->slot), welcome->arena_bytes,
                            welcome->slot);
  }
  if (heeds_signals) shmi_port_heed_signals();
  return status;
}

static void forget_broker(void) {
  shmi_arena_destroy();
  shmi_scoreboard_destroy();
  shmi_role_set(SHM_ROLE_NONE, -1);
  is_member = 0;
}

static int join(int connection_fd, const char *program, int64_t wait_ns, int heeds_signals,
                int *manifest_fd) {
  struct stat socket; /* known by inode: descriptors' numbers are reused when a caller gives up */
  if (fstat(connection_fd, &socket) != 0) {
    shmi_error_detail_errno("asking to be let in");
    return SHM_ESYSTEM;
  }
  if (asked != socket.st_ino) {
    int status = say_hello(connection_fd, program, wait_ns);
    if (status != SHM_OK) return status;
    asked = socket.st_ino;
    answer_by_ns = wait_ns < 0 ? 0 : shmi_clock_ns() + (uint64_t)wait_ns + ANSWER_NS;
  }
  int ready;
  do {
    if (answer_by_ns != 0 && shmi_clock_ns() > answer_by_ns) {
      asked = 0;
      return SHM_ETIMEOUT;
    }
    ready = shmi_pipe_wait(connection_fd, HEED_NS);
    if (ready <= 0 && heeds_signals) return SHM_EINTR;
  } while (ready == 0 || ready == SHM_EINTR);
  shmi_welcome_t welcome;
  int descriptors[SHMI_ATTACH_DESCRIPTORS];
  int count = hear(connection_fd, &welcome, descriptors);
  if (count == SHM_EINTR) return count;
  asked = 0;
  if (count < 0) return count;
  if (welcome.status != SHM_OK) {
    close_all(descriptors);
    shmi_error_detail_set("%s", welcome.sentence);
    return refusal_of(&welcome);
  }
  int status = count >= SHMI_ATTACH_MANIFEST ? become_member(&welcome, descriptors, heeds_signals)
                                            : SHM_EREFUSED;
  shmi_descriptor_close(&descriptors[SHMI_ATTACH_ARENA]);
  shmi_descriptor_close(&descriptors[SHMI_ATTACH_SCOREBOARD]);
  shmi_descriptor_close(&descriptors[SHMI_ATTACH_PAGE]);
  if (status != SHM_OK) {
    shmi_port_close();
    forget_broker();
    close_all(descriptors);
    return status;
  }
  if (count > SHMI_ATTACH_MANIFEST) { /* it belongs to the caller from here on */
    *manifest_fd = fcntl(descriptors[SHMI_ATTACH_MANIFEST], F_DUPFD_CLOEXEC, 0);
    shmi_descriptor_close(&descriptors[SHMI_ATTACH_MANIFEST]);
  }
  is_member = 1;
  return SHM_OK;
}

int shm_join(int connection_fd, const char *program, int64_t wait_ns, int heeds_signals,
             int *manifest_fd) {
  shmi_error_detail_set("%s", "");
  *manifest_fd = -1;
  pid_t me = getpid(), nobody = __atomic_load_n(&joining, __ATOMIC_RELAXED);
  /* Forked while its parent was joining, this process inherited a join that nobody will finish. */
  if (nobody == me ||
      !__atomic_compare_exchange_n(&joining, &nobody, me, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
    shmi_error_detail_set("another thread is just joining one");
    return SHM_ENESTED;
  }
  int status = shmi_role() == SHM_ROLE_NONE
                   ? join(connection_fd, program, wait_ns, heeds_signals, manifest_fd)
                   : SHM_ENESTED;
  __atomic_store_n(&joining, 0, __ATOMIC_RELEASE);
  return status;
}

static int copy_block(void *address, size_t bytes, int is_live, void *offset) {
  if (is_live) memcpy((char *)address + *(ptrdiff_t *)offset, address, bytes);
  return 0;
}

/* Replace what is still in use by private copies: the arena goes to the slot's next occupant. */
static void keep_privately(uint64_t mapping, size_t bytes) {
  void *here = (void *)(uintptr_t)mapping;
  char *own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
  if (own == MAP_FAILED) { /* unmap: we must not write into the next occupant's memory */
    mprotect(here, bytes, PROT_READ);
    return;
  }
  ptrdiff_t offset = own - (char *)here;
  shm_walk(copy_block, &offset);
  if (mremap(own, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, here) == MAP_FAILED) {
    munmap(own, bytes);
    mprotect(here, bytes, PROT_READ);
  }
}

/* ---- questions and commands ---- */

static int ask(int fd, shmi_hello_t *hello, shmi_welcome_t *answer, int *manifest_fd) {
  shmi_error_detail_set("%s", "");
  *manifest_fd = -1;
  int status = say(fd, hello);
  if (status != SHM_OK) return status;
  uint64_t until_ns = shmi_clock_ns() + ANSWER_NS, at_ns;
  int ready;
  do {
    at_ns = shmi_clock_ns();
    if (at_ns >= until_ns) return SHM_ETIMEOUT;
    ready = shmi_pipe_wait(fd, (int64_t)(until_ns - at_ns));
  } while (ready == 0 || ready == SHM_EINTR);
  int descriptors[SHMI_ATTACH_DESCRIPTORS], count;
  do {
    count = hear(fd, answer, descriptors);
  } while (count == SHM_EINTR);
  if (count < 0) return count;
  /* It belongs to the caller from here on. */
  if (count > 0) *manifest_fd = fcntl(descriptors[0], F_DUPFD_CLOEXEC, 0);
  close_all(descriptors);
  if (answer->status == SHM_OK) return SHM_OK;
  shmi_error_detail_set("%s", answer->sentence);
  return refusal_of(answer);
}

int shm_ask(int connection_fd, int pool, int *before, int *manifest_fd) {
  shmi_hello_t hello = {.kind = SHMI_HELLO_ASK, .pool = pool};
  shmi_welcome_t answer = {0};
  int status = ask(connection_fd, &hello, &answer, manifest_fd);
  *before = answer.helpers_before;
  return status;
}

int shm_ask_scale(int connection_fd, int pool, int helpers, int *before) {
  shmi_hello_t hello = {.kind = SHMI_HELLO_SCALE, .pool = pool, .helpers = helpers};
  shmi_welcome_t answer = {0};
  int manifest_fd;
  int status = ask(connection_fd, &hello, &answer, &manifest_fd);
  if (manifest_fd >= 0) close(manifest_fd);
  *before = answer.helpers_before;
  return status;
}

/* A command whose answer tells nothing but whether it was done. */
static int command(int connection_fd, shmi_hello_t hello) {
  shmi_welcome_t answer = {0};
  int manifest_fd;
  int status = ask(connection_fd, &hello, &answer, &manifest_fd);
  if (manifest_fd >= 0) close(manifest_fd);
  return status;
}

int shm_ask_retire(int connection_fd) {
  return command(connection_fd, (shmi_hello_t){.kind = SHMI_HELLO_RETIRE});
}

int shm_ask_pause(int connection_fd, int pool, int is_paused) {
  int kind = is_paused ? SHMI_HELLO_PAUSE : SHMI_HELLO_RESUME;
  return command(connection_fd, (shmi_hello_t){.kind = kind, .pool = pool});
}

void shmi_attach_leave(void) {
  uint64_t bytes;
  uint64_t mapping = shmi_arena_reservation(&bytes);
  keep_privately(mapping, bytes);
  shmi_port_close(); /* the broker sees the pipe's end and cleans the slot */
  if (shmi_heap_retire(mapping, bytes)) shmi_arena_detach();
  forget_broker();
}

int shm_disown(void) {
  if (!shmi_role_is_inherited()) return SHM_OK;
  if (shmi_role() != SHM_ROLE_CHILD) return SHM_ENESTED;
  shmi_port_disown();
  shmi_descriptor_keep_only(NULL, 0); /* copies would hide the owner's end from the broker */
  shmi_arena_narrow(shmi_role_index());
  uint64_t bytes;
  uint64_t mapping = shmi_arena_reservation(&bytes);
  if (shmi_heap_disown(mapping, bytes)) shmi_arena_detach();
  forget_broker();
  shmi_function_table_unseal();
  return SHM_OK;
}
