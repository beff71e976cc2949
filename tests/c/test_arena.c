/* Arenas: the arithmetic before, who sees what, and that nothing is left. */
#include "harness.h"

#include <fcntl.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "filter.h"
#include "memory/arena.h"
#include "memory/available.h"

enum { KIB = 1024, MIB = 1024 * 1024 };

static shmi_arena_plan_t plan(int children, size_t bytes) {
  return (shmi_arena_plan_t){.children = children, .arena_bytes = bytes, .helpers = 2};
}
static void make(const shmi_arena_plan_t *wanted) {
  int status = shmi_arena_create(wanted);
  if (status != SHM_OK)
    harness_fail(__FILE__, __LINE__, "%s: %s", shm_status_name(status), shm_error_detail());
}
static volatile unsigned char *arena(int child) {
  return (volatile unsigned char *)(uintptr_t)shmi_arena_address(child);
}
static int ended_by(pid_t pid) {
  int status;
  CHECK_EQ(waitpid(pid, &status, 0), pid);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}
/* How a process that touches this byte ends. */
static int touch(volatile unsigned char *at) {
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    signal(SIGSEGV, SIG_DFL);
    signal(SIGBUS, SIG_DFL);
    *at = 1;
    _exit(0);
  }
  return ended_by(pid);
}

TEST(bytes_are_rounded_up_to_whole_pages_and_a_whole_page_is_one) {
  size_t page = shmi_memory_page_bytes();
  CHECK_EQ(shmi_memory_in_pages(0), 0);
  CHECK_EQ(shmi_memory_in_pages(1), page);
  CHECK_EQ(shmi_memory_in_pages(page - 1), page);
  CHECK_EQ(shmi_memory_in_pages(page), page);
  CHECK_EQ(shmi_memory_in_pages(page + 1), 2 * page);
}

TEST(a_size_is_rounded_up_to_a_page) {
  size_t page = shmi_memory_page_bytes();
  shmi_arena_plan_t wanted = plan(1, 1);
  wanted.scratch_bytes = 1;
  make(&wanted);
  CHECK_EQ(shmi_arena_bytes(), page);
  CHECK_EQ(shmi_arena_scratch_address(0) % page, shmi_arena_address(0) % page);
  CHECK_EQ(shmi_arena_scratch_address(1) % page, shmi_arena_address(0) % page);
  shmi_arena_destroy();
  wanted = plan(2, page + 1);
  make(&wanted);
  CHECK_EQ(shmi_arena_bytes(), 2 * page);
  CHECK_EQ(shmi_arena_count(), 2);
  shmi_arena_destroy();
}

TEST(impossible_sizes_are_refused_with_a_sentence) {
  static const struct {
    int children;
    size_t bytes;
    int status;
  } rows[] = {
      {1, 0, SHM_EBAD_SIZE},
      {1, SIZE_MAX, SHM_EBAD_SIZE},
      {1, SIZE_MAX - 4095, SHM_EBAD_SIZE},
      {1, ((size_t)1 << 46) + 1, SHM_EBAD_SIZE},
      {2, (size_t)1 << 46, SHM_ENO_MEMORY},
      {4096, (size_t)1 << 45, SHM_ENO_MEMORY},
      {64, (size_t)1 << 42, SHM_ENO_MEMORY},
  };
  int fds = harness_open_fds();
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    shmi_arena_plan_t wanted = plan(rows[i].children, rows[i].bytes);
    CHECK_EQ(shmi_arena_create(&wanted), rows[i].status);
    CHECK(strlen(shm_error_detail()) > 10);
  }
  CHECK_EQ(harness_open_fds(), fds);
}

TEST(what_the_machine_has_is_decided_by_arithmetic) {
  const char *limited_by = NULL;
  uint64_t available = shmi_memory_available(&limited_by);
  CHECK(available > 0);
  CHECK(strlen(limited_by) > 3);
  CHECK_EQ(shm_check_memory(0), SHM_OK);
  CHECK_EQ(shm_check_memory(4096), SHM_OK);
  CHECK_EQ(shm_check_memory(UINT64_MAX), SHM_ENO_MEMORY);
  CHECK(strstr(shm_error_detail(), "scratch") == NULL); /* none was asked for */
  CHECK(strstr(shm_error_detail(), "MiB") != NULL);
}

TEST(a_limit_of_the_address_space_is_told_before_it_is_hit) {
  if (HARNESS_SANITIZED) SKIP("a sanitizer needs the address space");
  struct rlimit limit = {(rlim_t)256 * MIB, RLIM_INFINITY};
  CHECK_SYS(setrlimit(RLIMIT_AS, &limit));
  CHECK(shmi_memory_address_space() < (uint64_t)256 * MIB);
  shmi_arena_plan_t wanted = plan(8, 64 * MIB);
  CHECK_EQ(shmi_arena_create(&wanted), SHM_ENO_MEMORY);
  CHECK(strstr(shm_error_detail(), "RLIMIT_AS") != NULL);
}

TEST(arenas_do_not_touch_and_have_guards_between) {
  shmi_arena_plan_t wanted = plan(4, MIB);
  wanted.scratch_bytes = 64 * KIB;
  make(&wanted);
  uint64_t bytes, base = shmi_arena_reservation(&bytes);
  CHECK(shmi_arena_address(0) >= base + 4096);
  for (int i = 0; i < 3; i++) {
    CHECK(shmi_arena_address(i + 1) >= shmi_arena_address(i) + MIB + 4096);
  }
  CHECK(shmi_arena_scratch_address(0) >= shmi_arena_address(3) + MIB + 4096);
  CHECK(shmi_arena_scratch_address(1) >= shmi_arena_scratch_address(0) + 64 * KIB + 4096);
  CHECK(shmi_arena_scratch_address(1) + 64 * KIB + 4096 <= base + bytes);
  shmi_arena_destroy();
}

TEST(the_parent_maps_no_arena) {
  shmi_arena_plan_t wanted = plan(2, MIB);
  make(&wanted);
  CHECK_EQ(touch(arena(0)), -SIGSEGV);
  CHECK_EQ(touch(arena(1)), -SIGSEGV);
  CHECK_EQ(harness_mappings("shmgpu-arena"), 0);
  shmi_arena_destroy();
}

TEST(a_child_sees_its_own_arena_and_hits_a_wall_everywhere_else) {
  shmi_arena_plan_t wanted = plan(3, MIB);
  wanted.scratch_bytes = MIB;
  make(&wanted);
  CHECK_EQ(shmi_arena_map_child(1), SHM_OK);
  CHECK_EQ(touch(arena(1)), 0);
  CHECK_EQ(touch(arena(1) + MIB - 1), 0);
  CHECK_EQ(touch(arena(1) + MIB), -SIGSEGV);
  CHECK_EQ(touch(arena(1) - 1), -SIGSEGV);
  CHECK_EQ(touch(arena(0)), -SIGSEGV);
  CHECK_EQ(touch(arena(2)), -SIGSEGV);
  CHECK_EQ(touch((volatile unsigned char *)(uintptr_t)shmi_arena_scratch_address(0)), -SIGSEGV);
  shmi_arena_destroy();
}

TEST(a_helper_sees_all_arenas_and_all_scratch_at_the_same_addresses) {
  shmi_arena_plan_t wanted = plan(3, MIB);
  wanted.scratch_bytes = MIB;
  make(&wanted);
  fflush(NULL);
  pid_t helper = fork();
  if (helper == 0) {
    CHECK_EQ(shmi_arena_map_helper(), SHM_OK);
    for (int i = 0; i < 3; i++) arena(i)[10] = (unsigned char)(i + 1);
    for (int i = 0; i < 2; i++) *(volatile char *)(uintptr_t)shmi_arena_scratch_address(i) = 1;
    _exit(0);
  }
  CHECK_EQ(ended_by(helper), 0);
  for (int i = 0; i < 3; i++) {
    CHECK_EQ(shmi_arena_map_child(i), SHM_OK);
    CHECK_EQ(arena(i)[10], i + 1);
    CHECK_EQ(arena(i)[11], 0);
  }
  shmi_arena_destroy();
}

TEST(nobody_can_shrink_an_arena_under_its_readers) {
  shmi_arena_plan_t wanted = plan(1, MIB);
  make(&wanted);
  int tried = 0;
  for (int fd = 3; fd < 256; fd++) {
    char path[64], name[128];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, name, sizeof name - 1);
    if (length < 0) continue;
    name[length] = 0;
    if (strstr(name, "shmgpu-arena") == NULL) continue;
    tried++;
    CHECK_EQ(ftruncate(fd, 0), -1);
    CHECK_EQ(errno, EPERM);
    CHECK_EQ(ftruncate(fd, 2 * MIB), -1);
  }
  CHECK_EQ(tried, 1);
  shmi_arena_destroy();
}

/* A memory file; without bytes, something else. */
static int file_of(size_t bytes, int seals) {
  int ends[2];
  if (bytes == 0) {
    CHECK_SYS(pipe2(ends, O_CLOEXEC));
    close(ends[1]);
    return ends[0];
  }
  int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK_SYS(fd);
  CHECK_SYS(ftruncate(fd, (off_t)bytes));
  CHECK_SYS(fcntl(fd, F_ADD_SEALS, seals));
  return fd;
}

/* Where nothing lies, by the kernel's own choice: a thread sanitizer accepts no other place. */
static uint64_t free_address(void) {
  void *at = mmap(NULL, MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(at != MAP_FAILED);
  munmap(at, MIB);
  return (uint64_t)(uintptr_t)at;
}

TEST(a_client_maps_only_what_cannot_end_it) {
  static const struct {
    size_t bytes;
    int seals;
    size_t told_bytes;
    int expected;
  } offered[] = {
      {MIB, F_SEAL_SHRINK, MIB, SHM_OK},
      {2 * MIB, F_SEAL_SHRINK | F_SEAL_GROW, MIB, SHM_OK},
      {MIB, 0, MIB, SHM_EREFUSED},
      {MIB, F_SEAL_GROW, MIB, SHM_EREFUSED},
      {MIB, F_SEAL_SHRINK, MIB + 1, SHM_EREFUSED},
      {MIB, F_SEAL_SHRINK, 0, SHM_EREFUSED},
      {0, 0, MIB, SHM_EREFUSED},
  };
  uint64_t address = free_address();
  for (size_t i = 0; i < sizeof offered / sizeof *offered; i++) {
    int fd = file_of(offered[i].bytes, offered[i].seals);
    CHECK_EQ(shmi_arena_join(fd, 0, address, offered[i].told_bytes), offered[i].expected);
    if (offered[i].expected == SHM_OK) {
      arena(0)[MIB - 1] = 1;
      shmi_arena_destroy();
    }
    close(fd);
  }
}

static void populates_and_changes_nothing(void) {
  shmi_arena_plan_t wanted = plan(1, MIB);
  wanted.prefault = 1;
  make(&wanted);
  CHECK_EQ(shmi_arena_map_child(0), SHM_OK);
  CHECK_EQ(shmi_arena_populate(0), SHM_OK);
  unsigned char present[MIB / 4096];
  CHECK_SYS(mincore((void *)(uintptr_t)shmi_arena_address(0), MIB, present));
  size_t step = shmi_memory_page_bytes() / 4096; /* the kernel's own may be smaller than ours */
  for (size_t i = 0; i < sizeof present; i += step) CHECK_EQ(present[i] & 1, 1);
  for (size_t i = 0; i < MIB; i++) CHECK_EQ(arena(0)[i], 0);
  shmi_arena_destroy();
}

TEST(prefault_populates_and_changes_nothing) { populates_and_changes_nothing(); }

#ifdef MADV_POPULATE_WRITE
TEST(before_linux_5_14_prefault_touches_each_page_and_changes_nothing) {
  FILTER_OR_SKIP(filter_refuse_with(SYS_madvise, 2, MADV_POPULATE_WRITE, EINVAL));
  CHECK_EQ(madvise(NULL, 0, MADV_POPULATE_WRITE), -1);
  populates_and_changes_nothing();
}
#endif

TEST(huge_pages_start_on_their_border) {
  shmi_arena_plan_t wanted = plan(2, MIB);
  wanted.huge_pages = 1;
  make(&wanted);
  CHECK_EQ(shmi_arena_bytes(), 2 * MIB);
  for (int i = 0; i < 2; i++) {
    CHECK_EQ(shmi_arena_address(i) % (2 * MIB), 0);
    CHECK_EQ(shmi_arena_map_child(i), SHM_OK);
    arena(i)[2 * MIB - 1] = 1;
  }
  shmi_arena_destroy();
}

TEST(making_and_destroying_leaves_nothing) {
  int fds = harness_open_fds(), maps = harness_mappings("");
  size_t memory = 0;
  for (int i = 0; i < 2 * HARNESS_ROUNDS; i++) {
    shmi_arena_plan_t wanted = plan(8, MIB);
    wanted.scratch_bytes = MIB;
    make(&wanted);
    CHECK_EQ(shmi_arena_map_helper(), SHM_OK);
    shmi_arena_destroy();
    CHECK_EQ(harness_open_fds(), fds);
    CHECK_EQ(harness_mappings("shmgpu-"), 0);
    if (i == HARNESS_ROUNDS) memory = harness_memory();
  }
  CHECK_EQ(harness_memory(), memory);
  if (!HARNESS_SANITIZED) CHECK_EQ(harness_mappings(""), maps);
  shmi_arena_destroy();
}

TEST(no_room_for_descriptors_makes_no_arena_at_all) {
  struct rlimit limit;
  CHECK_SYS(getrlimit(RLIMIT_NOFILE, &limit));
  int fds = harness_open_fds();
  limit.rlim_cur = 12;
  CHECK_SYS(setrlimit(RLIMIT_NOFILE, &limit));
  shmi_arena_plan_t wanted = plan(64, MIB);
  CHECK_EQ(shmi_arena_create(&wanted), SHM_ESYSTEM);
  CHECK_EQ(errno, EMFILE);
  CHECK(strlen(shm_error_detail()) > 10);
  CHECK_EQ(harness_open_fds(), fds);
  CHECK_EQ(harness_mappings("shmgpu-"), 0);
}
