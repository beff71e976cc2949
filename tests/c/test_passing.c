/* Descriptors that travel with a message: all of them arrive, or none is left. */
#include "harness.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "base/descriptor.h"
#include "base/passing.h"
#include "memory/arena.h"

enum { MOST = SHMI_PASSING_MOST };

static int ends[2];

static void make_ends(void) { CHECK_EQ(shmi_passing_make(ends), SHM_OK); }

static void close_ends(void) {
  close(ends[0]);
  close(ends[1]);
}

TEST(as_many_arrive_as_were_sent_and_none_is_inherited_by_a_program) {
  make_ends();
  int fds = harness_open_fds();
  for (int count = 0; count <= MOST; count++) {
    int sent[MOST], got[MOST], word = count, heard = -1;
    for (int i = 0; i < count; i++) sent[i] = ends[0];
    CHECK_EQ(shmi_passing_send(ends[0], &word, sizeof word, sent, count), SHM_OK);
    CHECK_EQ(shmi_passing_receive(ends[1], &heard, sizeof heard, got, MOST), count);
    CHECK_EQ(heard, count);
    for (int i = 0; i < MOST; i++) {
      if (i >= count) CHECK_EQ(got[i], -1);
      else CHECK_EQ(fcntl(got[i], F_GETFD), FD_CLOEXEC);
      if (i < count) close(got[i]);
    }
    CHECK_EQ(harness_open_fds(), fds);
  }
  CHECK_EQ(shmi_passing_send(ends[0], "", 1, (int[MOST + 1]){0}, MOST + 1), SHM_EBAD_SIZE);
  close_ends();
}

TEST(of_what_was_not_asked_for_nothing_is_left) {
  make_ends();
  int fds = harness_open_fds(), got[2];
  uint32_t word = 0;
  struct {
    size_t bytes; /* of the message that is sent */
    int count;
  } rows[] = {{4, 3}, {4, MOST}, {1, 0}, {3, 1}, {5, 1}, {5, 0}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    int sent[MOST];
    for (int k = 0; k < MOST; k++) sent[k] = ends[0];
    CHECK_EQ(shmi_passing_send(ends[0], "12345", rows[i].bytes, sent, rows[i].count), SHM_OK);
    CHECK_EQ(shmi_passing_receive(ends[1], &word, sizeof word, got, 2), SHM_EREFUSED);
    CHECK_EQ(got[0], -1);
    CHECK_EQ(got[1], -1);
    CHECK_EQ(harness_open_fds(), fds);
  }
  CHECK_EQ(shmi_passing_receive(ends[1], &word, sizeof word, got, 2), SHM_EAGAIN);
  close(ends[0]);
  CHECK_EQ(shmi_passing_receive(ends[1], &word, sizeof word, got, 2), SHM_EBROKER_DIED);
  CHECK_EQ(shmi_passing_send(ends[1], "1234", 4, NULL, 0), SHM_EBROKER_DIED);
  close(ends[1]);
}

TEST(a_socket_that_nobody_reads_says_so_instead_of_waiting) {
  make_ends();
  int status = SHM_OK, sent = 0, got = -1;
  uint32_t word = 0;
  while (status == SHM_OK && sent < 1000000) {
    status = shmi_passing_send(ends[0], &word, sizeof word, &ends[1], 1);
    if (status == SHM_OK) sent++;
  }
  CHECK_EQ(status, SHM_EAGAIN);
  CHECK(sent > 16);
  CHECK_EQ(shmi_passing_receive(ends[1], &word, sizeof word, &got, 1), 1);
  close(got);
  close_ends();
}

/* ---- memory files of a slot that changes hands ---- */

static int other_fd = -1;

static volatile unsigned char *arena(int child) {
  return (volatile unsigned char *)(uintptr_t)shmi_arena_address(child);
}

/* A helper, from its fork on: says what it sees in an arena, then maps the next one, and again. */
static void helper_looks(int child, const unsigned char before, const unsigned char after) {
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    CHECK_EQ(shmi_arena_map_helper(), SHM_OK);
    shmi_arena_close_descriptors();
    CHECK_EQ(arena(child)[5], before);
    CHECK_EQ(shmi_arena_take(ends[1], &other_fd), SHM_EAGAIN);
    CHECK_SYS(write(ends[1], "r", 1)); /* ready for it */
    int status;
    while ((status = shmi_arena_take(ends[1], &other_fd)) == SHM_EAGAIN) harness_sleep_ms(1);
    CHECK_EQ(status, child);
    CHECK_EQ(arena(child)[5], after);
    CHECK_EQ(shmi_arena_version(child), 1);
    CHECK_EQ(shmi_arena_version(1 - child), 0);
    CHECK_EQ(harness_mappings("shmgpu-arena"), 2);
    arena(child)[6] = 66;
    _exit(0);
  }
  char word;
  while (read(ends[0], &word, 1) != 1) harness_sleep_ms(1);
  CHECK_EQ(shmi_arena_renew(child), SHM_OK);
  CHECK_EQ(shmi_arena_pass(child, ends[0]), SHM_OK);
  int status;
  CHECK_EQ(waitpid(pid, &status, 0), pid);
  CHECK_EQ(status, 0);
}

TEST(a_renewed_arena_is_zero_and_mapped_where_the_old_one_was) {
  make_ends();
  shmi_arena_plan_t plan = {.children = 2, .arena_bytes = 1 << 20, .helpers = 1};
  CHECK_EQ(shmi_arena_create(&plan), SHM_OK);
  fflush(NULL);
  pid_t writer = fork();
  if (writer == 0) {
    CHECK_EQ(shmi_arena_map_child(1), SHM_OK);
    arena(1)[5] = 55;
    _exit(0);
  }
  int status, fds = harness_open_fds();
  CHECK_EQ(waitpid(writer, &status, 0), writer);
  int old = fcntl(shmi_arena_descriptor(1), F_DUPFD_CLOEXEC, 0);
  helper_looks(1, 55, 0);
  CHECK_EQ(shmi_arena_version(1), 1);
  unsigned char byte;
  CHECK_EQ(pread(old, &byte, 1, 5), 1);
  CHECK_EQ(byte, 55); /* who holds the old one has it as it was */
  CHECK_EQ(pread(shmi_arena_descriptor(1), &byte, 1, 6), 1);
  CHECK_EQ(byte, 66);
  CHECK_EQ(fcntl(shmi_arena_descriptor(1), F_GET_SEALS),
           F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  close(old);
  CHECK_EQ(harness_open_fds(), fds);
  shmi_arena_destroy();
  close_ends();
}

TEST(a_helper_believes_no_number_of_a_slot_that_is_none) {
  make_ends();
  shmi_arena_plan_t plan = {.children = 2, .arena_bytes = 1 << 20, .helpers = 1};
  CHECK_EQ(shmi_arena_create(&plan), SHM_OK);
  int fds = harness_open_fds();
  uint64_t message[2] = {1, 2};
  int file = shmi_arena_descriptor(0);
  CHECK_EQ(shmi_passing_send(ends[0], message, sizeof message, &file, 1), SHM_OK);
  CHECK_EQ(shmi_arena_take(ends[1], &other_fd), SHM_EREFUSED);
  message[1] = 0;
  CHECK_EQ(shmi_passing_send(ends[0], message, sizeof message, NULL, 0), SHM_OK);
  CHECK_EQ(shmi_arena_take(ends[1], &other_fd), SHM_EREFUSED);
  CHECK_EQ(harness_open_fds(), fds);
  shmi_arena_destroy();
  close_ends();
}

TEST(a_file_that_is_no_arenas_comes_in_turn_with_those_that_are) {
  make_ends();
  shmi_arena_plan_t plan = {.children = 2, .arena_bytes = 1 << 20, .helpers = 1};
  CHECK_EQ(shmi_arena_create(&plan), SHM_OK);
  int fds = harness_open_fds();
  int file = shmi_descriptor_own(memfd_create("other", MFD_CLOEXEC));
  CHECK_EQ(write(file, "kept", 4), 4);
  CHECK_EQ(shmi_arena_pass(1, ends[0]), SHM_OK);
  CHECK_EQ(shmi_arena_pass_other(file, ends[0]), SHM_OK);
  CHECK_EQ(shmi_arena_pass(0, ends[0]), SHM_OK);
  shmi_descriptor_close(&file);
  CHECK_EQ(shmi_arena_take(ends[1], &other_fd), 1);
  CHECK_EQ(other_fd, -1);
  CHECK_EQ(shmi_arena_take(ends[1], &other_fd), 2);
  char word[4];
  CHECK_EQ(pread(other_fd, word, 4, 0), 4);
  CHECK_EQ(memcmp(word, "kept", 4), 0);
  shmi_descriptor_close(&other_fd);
  CHECK_EQ(shmi_arena_take(ends[1], &other_fd), 0);
  CHECK_EQ(harness_open_fds(), fds);
  shmi_arena_destroy();
  close_ends();
}
