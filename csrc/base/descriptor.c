/* descriptor -- see descriptor.h. A bit for each number: marking, sweeping and counting are
 * all cheap, and a number names at most one descriptor. */
#include "base/descriptor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/error_detail.h"

enum { BITS = 64 };

static uint64_t *marks;  /* bit fd: this descriptor is ours */
static int mark_words;

int shmi_descriptor_owns(int fd) {
  return fd >= 0 && fd / BITS < mark_words && (marks[fd / BITS] >> (fd % BITS) & 1) != 0;
}

static void unmark(int fd) {
  marks[fd / BITS] &= ~(UINT64_C(1) << (fd % BITS));
}

int shmi_descriptor_own(int fd) {
  if (fd < 0) {
    shmi_error_detail_errno("opening a descriptor");
    return fd;
  }
  if (fd / BITS >= mark_words) {
    int words = fd / BITS + 16;
    uint64_t *grown = realloc(marks, (size_t)words * sizeof *marks);
    if (grown == NULL) {
      close(fd);
      errno = ENOMEM;
      return -1;
    }
    memset(grown + mark_words, 0, (size_t)(words - mark_words) * sizeof *marks);
    marks = grown;
    mark_words = words;
  }
  marks[fd / BITS] |= UINT64_C(1) << (fd % BITS);
  return fd;
}

void shmi_descriptor_close(int *fd) {
  if (*fd >= 0) {
    if (shmi_descriptor_owns(*fd)) unmark(*fd);
    close(*fd);
  }
  *fd = -1;
}

void shmi_descriptor_keep_only(const int keep[], int count) {
  uint64_t *kept = mark_words > 0 ? calloc((size_t)mark_words, sizeof *kept) : NULL;
  for (int i = 0; i < count && kept != NULL; i++) {
    if (shmi_descriptor_owns(keep[i])) {
      kept[keep[i] / BITS] |= UINT64_C(1) << (keep[i] % BITS);
    }
  }
  for (int word = 0; word < mark_words; word++) {
    uint64_t closing = marks[word] & ~(kept != NULL ? kept[word] : 0);
    while (closing != 0) {
      int bit = __builtin_ctzll(closing);
      closing &= closing - 1;
      close(word * BITS + bit);
    }
    if (kept != NULL) marks[word] = kept[word];
  }
  free(kept);
}

int shmi_descriptor_count(void) {
  int count = 0;
  for (int word = 0; word < mark_words; word++) count += __builtin_popcountll(marks[word]);
  return count;
}

int shmi_descriptor_room(int wanted) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return SHM_ESYSTEM;
  /* 64 are left to the user's own files, opened before or after. */
  rlim_t needed = (rlim_t)wanted + (rlim_t)shmi_descriptor_count() + 64;
  if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= needed) return SHM_OK;
  if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < needed) {
    errno = EMFILE;
    return SHM_ESYSTEM;
  }
  limit.rlim_cur = needed;
  return setrlimit(RLIMIT_NOFILE, &limit) == 0 ? SHM_OK : SHM_ESYSTEM;
}
