/* kept_file -- see kept_file.h. */
#include "memory/kept_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/error_detail.h"
#include "memory/arena.h"
#include "memory/available.h"

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL };

int shmi_kept_file_make(uint64_t bytes) {
  if (bytes == 0 || bytes > UINT64_C(1) << 46) return SHM_EBAD_SIZE;
  int status = shmi_arena_check_memory(shmi_memory_in_pages(bytes));
  if (status != SHM_OK) return status;
  int fd = shmi_descriptor_own(memfd_create("shmgpu-broadcast", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0) return fd;
  shmi_error_detail_errno("making the memory file of a broadcast");
  shmi_descriptor_close(&fd);
  return SHM_ESYSTEM;
}

int shmi_kept_file_seal(int fd) {
  if (fcntl(fd, F_ADD_SEALS, SEALS) == 0) return SHM_OK;
  shmi_error_detail_errno("sealing the memory file of a broadcast");
  return SHM_ESYSTEM;
}

uint64_t shmi_kept_file_bytes(int fd) {
  struct stat file;
  int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &file) != 0) return 0;
  return (uint64_t)file.st_size;
}

void *shmi_kept_file_map(int fd, uint64_t bytes) {
  void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
  if (at == MAP_FAILED) {
    shmi_error_detail_errno("mapping the memory file of a broadcast");
    return NULL;
  }
  shmi_arena_leave_out_of_dumps(at, bytes);
  return at;
}

void shmi_kept_file_unmap(void *at, uint64_t bytes) { munmap(at, bytes); }
