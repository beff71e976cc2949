/* kept_file: memory files that nobody can change once they are sealed. */
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/error_detail.h"
#include "memory/kept_file.h"

static int filled(const char *text, uint64_t bytes) {
  int fd = shmi_kept_file_make(bytes);
  CHECK(fd >= 0);
  CHECK_EQ(pwrite(fd, text, strlen(text), 0), (ssize_t)strlen(text));
  return fd;
}

TEST(a_sealed_file_can_be_neither_written_to_nor_resized) {
  int fds = harness_open_fds(), fd = filled("weights", 8192);
  CHECK_EQ(shmi_kept_file_bytes(fd), 0); /* not sealed yet */
  CHECK_EQ(shmi_kept_file_seal(fd), SHM_OK);
  CHECK_EQ(shmi_kept_file_bytes(fd), 8192);
  CHECK(pwrite(fd, "x", 1, 0) < 0 && errno == EPERM);
  CHECK(ftruncate(fd, 0) != 0 && errno == EPERM);
  CHECK(mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
  shmi_descriptor_close(&fd);
  CHECK_EQ(harness_open_fds(), fds);
}

TEST(what_is_written_to_a_mapping_nobody_else_sees) {
  int fd = filled("weights", 8192);
  CHECK_EQ(shmi_kept_file_seal(fd), SHM_OK);
  char *mine = shmi_kept_file_map(fd, 8192), *theirs = shmi_kept_file_map(fd, 8192), byte;
  CHECK(mine != NULL && theirs != NULL);
  mine[0] = 'W';
  CHECK_EQ(memcmp(theirs, "weights", 8), 0);
  CHECK_EQ(pread(fd, &byte, 1, 0), 1);
  CHECK_EQ(byte, 'w');
  shmi_descriptor_close(&fd);
  CHECK_EQ(memcmp(theirs, "weights", 8), 0); /* the mapping keeps it */
  shmi_kept_file_unmap(mine, 8192);
  shmi_kept_file_unmap(theirs, 8192);
  CHECK_EQ(harness_mappings("shmgpu-broadcast"), 0);
}

TEST(more_than_the_machine_has_is_refused_before_any_is_taken) {
  int fds = harness_open_fds();
  CHECK_EQ(shmi_kept_file_make(UINT64_C(1) << 45), SHM_ENO_MEMORY);
  CHECK(strstr(shm_error_detail(), "MiB are asked for") != NULL);
  CHECK_EQ(shmi_kept_file_make(0), SHM_EBAD_SIZE);
  CHECK_EQ(harness_open_fds(), fds);
}
