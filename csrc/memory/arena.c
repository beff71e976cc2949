/* arena -- see arena.h. */
#include "memory/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/error_detail.h"
#include "base/passing.h"
#include "memory/available.h"


static shmi_arena_plan_t plan;
static char *reservation;
static uint64_t reservation_bytes;
static size_t stride, scratch_stride; /* one region and the guard behind it */
static int *arena_fds, *scratch_fds;
static uint64_t *versions; /* how many memory files each child's arena had before: inherited */

static int dumped; /* the user wants the regions in core dumps, for a debugger */
static int joined = -1;   /* the child that this process is, if it joined; -1: it did not */
static int64_t shift;     /* broker's address - address here */

#define MIB ((double)(1 << 20))

/* scratch: how much of it is for the helpers, which whoever sized the arenas has not in mind. */
static int check_memory(uint64_t bytes, uint64_t scratch) {
  const char *limited_by;
  uint64_t available = shmi_memory_available(&limited_by);
  if (bytes <= available) return SHM_OK;
  char of_which[64] = "";
  if (scratch > 0) {
    snprintf(of_which, sizeof of_which, ", %.3g of them as helpers' scratch regions",
             (double)scratch / MIB);
  }
  shmi_error_detail_set("%.0f MiB are asked for in all%s, but %s has %.0f MiB to give",
                  (double)bytes / MIB, of_which, limited_by, (double)available / MIB);
  return SHM_ENO_MEMORY;
}

int shmi_arena_check_memory(uint64_t bytes) { return check_memory(bytes, 0); }

static int region_make(const char *name, size_t bytes) {
  int fd = shmi_descriptor_own(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd < 0) return -1;
  /* Sealed: nobody, not even its own child, can shrink it under a helper that reads it. */
  if (ftruncate(fd, (off_t)bytes) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    int saved = errno;
    shmi_descriptor_close(&fd);
    errno = saved;
    return -1;
  }
  return fd;
}

static int regions_make(int **fds, int count, const char *name, size_t bytes) {
  *fds = malloc((size_t)(count > 0 ? count : 1) * sizeof **fds);
  if (*fds == NULL) return SHM_ESYSTEM;
  for (int i = 0; i < count; i++) (*fds)[i] = -1;
  for (int i = 0; i < count; i++) {
    (*fds)[i] = region_make(name, bytes);
    if ((*fds)[i] < 0) {
      shmi_error_detail_errno("making an arena's memory");
      return SHM_ESYSTEM;
    }
  }
  return SHM_OK;
}

static int plan_regions(const shmi_arena_plan_t *wanted) {
  return wanted->children + wanted->helpers;
}

/* Guards are as large as a huge page if arenas must start on the boundary of one. */
static size_t guard_bytes(const shmi_arena_plan_t *wanted) {
  return wanted->huge_pages ? (size_t)2 << 20 : (size_t)SHM_GUARD_BYTES;
}

static int fits(const shmi_arena_plan_t *wanted, uint64_t *payload, uint64_t *addresses) {
  uint64_t arenas, scratches;
  if (__builtin_mul_overflow((uint64_t)wanted->arena_bytes, (uint64_t)wanted->children, &arenas) ||
      __builtin_mul_overflow((uint64_t)wanted->scratch_bytes, (uint64_t)wanted->helpers,
                             &scratches) ||
      __builtin_add_overflow(arenas, scratches, payload) || *payload > UINT64_C(1) << 46) {
    shmi_error_detail_set("%d arenas of %zu bytes exceed any machine's memory", wanted->children,
                    wanted->arena_bytes);
    return SHM_ENO_MEMORY;
  }
  *addresses = *payload + guard_bytes(wanted) * (uint64_t)(plan_regions(wanted) + 2);
  int status = check_memory(*payload, scratches);
  if (status != SHM_OK) return status;
  uint64_t room = shmi_memory_address_space();
  if (*addresses > room) {
    shmi_error_detail_set("%.0f MiB of addresses are asked for, but RLIMIT_AS leaves %.0f MiB",
                    (double)*addresses / MIB, (double)room / MIB);
    return SHM_ENO_MEMORY;
  }
  return SHM_OK;
}

int shmi_arena_create(const shmi_arena_plan_t *wanted) {
  shmi_arena_plan_t rounded = *wanted;
  size_t unit = wanted->huge_pages ? (size_t)2 << 20 : shmi_memory_page_bytes();
  if (wanted->arena_bytes == 0 || wanted->arena_bytes > (UINT64_C(1) << 46)) {
    shmi_error_detail_set("an arena has from 1 byte to 64 TiB, not %zu bytes", wanted->arena_bytes);
    return SHM_EBAD_SIZE;
  }
  rounded.arena_bytes = (wanted->arena_bytes + unit - 1) & ~(unit - 1);
  rounded.scratch_bytes = shmi_memory_in_pages(wanted->scratch_bytes);
  uint64_t payload, addresses;
  int status = fits(&rounded, &payload, &addresses);
  if (status != SHM_OK) return status;

  size_t guard = guard_bytes(&rounded);
  void *made = mmap(NULL, addresses, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) {
    shmi_error_detail_errno("reserving addresses for the arenas");
    return SHM_ESYSTEM;
  }
  plan = rounded;
  reservation = made;
  reservation_bytes = addresses;
  stride = plan.arena_bytes + guard;
  scratch_stride = plan.scratch_bytes > 0 ? plan.scratch_bytes + guard : 0;
  versions = calloc((size_t)plan.children, sizeof *versions);
  status = versions == NULL ? SHM_ESYSTEM : SHM_OK;
  if (status == SHM_OK) status = regions_make(&arena_fds, plan.children, "shmgpu-arena", plan.arena_bytes);
  if (status == SHM_OK && plan.scratch_bytes > 0) {
    status = regions_make(&scratch_fds, plan.helpers, "shmgpu-scratch", plan.scratch_bytes);
  }
  if (status != SHM_OK) {
    int saved = errno;
    shmi_arena_destroy();
    errno = saved;
  }
  return status;
}

void shmi_arena_close_descriptors(void) {
  for (int i = 0; arena_fds != NULL && i < plan.children; i++) shmi_descriptor_close(&arena_fds[i]);
  for (int i = 0; scratch_fds != NULL && i < plan.helpers; i++) {
    shmi_descriptor_close(&scratch_fds[i]);
  }
}

void shmi_arena_destroy(void) {
  shmi_arena_close_descriptors();
  free(arena_fds);
  free(scratch_fds);
  free(versions);
  arena_fds = scratch_fds = NULL;
  versions = NULL;
  if (reservation != NULL) munmap(reservation, reservation_bytes);
  reservation = NULL;
  reservation_bytes = 0;
  joined = -1;
  shift = 0;
  memset(&plan, 0, sizeof plan);
}

void shmi_arena_detach(void) { reservation = NULL; }

void shmi_arena_dump(int wanted) { dumped = wanted; }

/* Arenas hold the programs' data, which should not land on disk because a helper crashed. Writing
 * large arenas would also take long. */
void shmi_arena_leave_out_of_dumps(void *at, size_t bytes) {
  if (!dumped) madvise(at, bytes, MADV_DONTDUMP);
}

int shmi_arena_join(int fd, int child, uint64_t broker_address, size_t bytes) {
  struct stat file;
  int seals = fcntl(fd, F_GET_SEALS);
  /* A file that can shrink, or is shorter than stated, would end this process by SIGBUS. */
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &file) != 0 || bytes == 0 ||
      (uint64_t)file.st_size < bytes) {
    shmi_error_detail_set("the arena that it hands out is no sealed memory file of %zu bytes", bytes);
    return SHM_EREFUSED;
  }
  void *wanted = (void *)(uintptr_t)broker_address;
  void *made = mmap(wanted, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
  if (made == MAP_FAILED && errno == EEXIST) {
    made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (made == MAP_FAILED) {
    shmi_error_detail_errno("mapping an arena");
    return SHM_ESYSTEM;
  }
  shmi_arena_leave_out_of_dumps(made, bytes);
  plan = (shmi_arena_plan_t){.children = 1, .arena_bytes = bytes};
  reservation = made;
  reservation_bytes = bytes;
  joined = child;
  shift = (int64_t)(broker_address - (uint64_t)(uintptr_t)made);
  return SHM_OK;
}

void shmi_arena_narrow(int child) {
  if (joined >= 0) return;
  char *own = (char *)(uintptr_t)shmi_arena_address(child), *behind = own + plan.arena_bytes;
  munmap(reservation, (size_t)(own - reservation));
  munmap(behind, (size_t)(reservation + reservation_bytes - behind));
  reservation = own;
  reservation_bytes = plan.arena_bytes;
  joined = child;
}

int64_t shmi_arena_shift(void) { return shift; }
int shmi_arena_descriptor(int child) { return arena_fds[child]; }

static int map_region(int fd, uint64_t address, size_t bytes) {
  void *at = (void *)(uintptr_t)address;
  if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    shmi_error_detail_errno("mapping an arena");
    return SHM_ESYSTEM;
  }
  shmi_arena_leave_out_of_dumps(at, bytes);
  if (plan.huge_pages) madvise(at, bytes, MADV_HUGEPAGE); /* the kernel may not have any */
  return SHM_OK;
}

int shmi_arena_map_child(int child) {
  return map_region(arena_fds[child], shmi_arena_address(child), plan.arena_bytes);
}

int shmi_arena_map_helper(void) {
  for (int child = 0; child < plan.children; child++) {
    int status = shmi_arena_map_child(child);
    if (status != SHM_OK) return status;
  }
  for (int helper = 0; plan.scratch_bytes > 0 && helper < plan.helpers; helper++) {
    int status =
        map_region(scratch_fds[helper], shmi_arena_scratch_address(helper), plan.scratch_bytes);
    if (status != SHM_OK) return status;
  }
  return SHM_OK;
}

/* ---- another memory file for a slot ---- */

int shmi_arena_renew(int child) {
  int fd = region_make("shmgpu-arena", plan.arena_bytes);
  if (fd < 0) return SHM_ESYSTEM;
  shmi_descriptor_close(&arena_fds[child]);
  arena_fds[child] = fd;
  versions[child]++;
  return SHM_OK;
}

uint64_t shmi_arena_version(int child) {
  return versions != NULL && child >= 0 && child < plan.children ? versions[child] : 0;
}

typedef struct passed {
  uint64_t version;
  uint64_t child;
} passed_t;

#define OF_NO_CHILD UINT64_MAX /* the file that was passed is no arena's */

int shmi_arena_pass_other(int fd, int socket_fd) {
  passed_t which = {.child = OF_NO_CHILD};
  return shmi_passing_send(socket_fd, &which, sizeof which, &fd, 1);
}

int shmi_arena_pass(int child, int socket_fd) {
  passed_t which = {.version = versions[child], .child = (uint64_t)child};
  return shmi_passing_send(socket_fd, &which, sizeof which, &arena_fds[child], 1);
}

int shmi_arena_take(int socket_fd, int *other_fd) {
  passed_t which;
  int fd, count;
  do {
    count = shmi_passing_receive(socket_fd, &which, sizeof which, &fd, 1);
  } while (count == SHM_EINTR);
  if (count < 0) return count;
  if (count == 1 && which.child == OF_NO_CHILD) {
    *other_fd = fd;
    return plan.children;
  }
  int child = which.child < (uint64_t)plan.children ? (int)which.child : -1;
  int status = count == 1 && child >= 0
                   ? map_region(fd, shmi_arena_address(child), plan.arena_bytes)
                   : SHM_EREFUSED;
  shmi_descriptor_close(&fd);
  if (status != SHM_OK) return status;
  versions[child] = which.version;
  return child;
}

int shmi_arena_populate(int child) {
  if (!plan.prefault) return SHM_OK;
  char *at = (char *)(uintptr_t)shmi_arena_address(child);
#ifdef MADV_POPULATE_WRITE
  if (madvise(at, plan.arena_bytes, MADV_POPULATE_WRITE) == 0) return SHM_OK;
  if (errno != EINVAL) {
    shmi_error_detail_errno("populating an arena");
    return SHM_ESYSTEM;
  }
#endif
  /* Before Linux 5.14: touch one byte in each page. Arenas are zero here, so zero changes
   * nothing. */
  size_t page = shmi_memory_page_bytes();
  for (size_t offset = 0; offset < plan.arena_bytes; offset += page) {
    *(volatile char *)(at + offset) = 0;
  }
  return SHM_OK;
}

int shmi_arena_next_data(int child, uint64_t from, uint64_t most, uint64_t *offset,
                         uint64_t *bytes) {
  off_t data = lseek(arena_fds[child], (off_t)from, SEEK_DATA);
  if (data < 0) return 0; /* ENXIO: nothing but holes */
  off_t hole = lseek(arena_fds[child], data, SEEK_HOLE);
  *offset = (uint64_t)data;
  *bytes = (hole > data ? (uint64_t)hole : plan.arena_bytes) - (uint64_t)data;
  if (*bytes > most) *bytes = most;
  return 1;
}

uint64_t shmi_arena_address(int child) {
  if (joined >= 0) return child == joined ? (uint64_t)(uintptr_t)reservation : 0;
  uint64_t first = (uint64_t)(uintptr_t)reservation + SHM_GUARD_BYTES;
  if (plan.huge_pages) {
    uint64_t unit = UINT64_C(2) << 20;
    first = (first + unit - 1) & ~(unit - 1);
  }
  return first + (uint64_t)child * stride;
}

uint64_t shmi_arena_scratch_address(int helper) {
  return shmi_arena_address(plan.children) + (uint64_t)helper * scratch_stride;
}

size_t shmi_arena_scratch_bytes(void) { return plan.scratch_bytes; }
size_t shmi_arena_bytes(void) { return plan.arena_bytes; }
int shmi_arena_count(void) { return plan.children; }

uint64_t shmi_arena_reservation(uint64_t *bytes) {
  *bytes = reservation_bytes;
  return (uint64_t)(uintptr_t)reservation;
}
