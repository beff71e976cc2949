/* available -- see available.h. */
#include "memory/available.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The number of `key` in a file of "key   number unit" lines, scaled from kB; fallback if
 * absent. */
static uint64_t field_kib(const char *path, const char *key, uint64_t fallback) {
  FILE *file = fopen(path, "re");
  if (file == NULL) return fallback;
  char line[256];
  uint64_t found = fallback;
  size_t length = strlen(key);
  while (fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, key, length) == 0 && line[length] == ':') {
      found = strtoull(line + length + 1, NULL, 10) * 1024;
      break;
    }
  }
  fclose(file);
  return found;
}

/* The number in a file that holds one number, or "max". */
static uint64_t number_file(const char *path, uint64_t fallback) {
  FILE *file = fopen(path, "re");
  if (file == NULL) return fallback;
  char line[64] = "";
  char *end = line;
  uint64_t value = fallback;
  if (fgets(line, sizeof line, file) != NULL) {
    value = strtoull(line, &end, 10);
    if (end == line) value = UINT64_MAX; /* "max" */
  }
  fclose(file);
  return value;
}

/* "key number" in a cgroup's memory.stat: page cache that is reclaimed under pressure. */
static uint64_t reclaimable(const char *path) {
  FILE *file = fopen(path, "re");
  if (file == NULL) return 0;
  char line[256];
  uint64_t bytes = 0, value;
  while (fgets(line, sizeof line, file) != NULL) {
    if (sscanf(line, "inactive_file %" SCNu64, &value) == 1 ||
        sscanf(line, "total_inactive_file %" SCNu64, &value) == 1) {
      bytes = value;
    }
  }
  fclose(file);
  return bytes;
}

static uint64_t cgroup_room(const char *root, const char *path, const char *limit_name,
                            const char *usage_name) {
  char file[1200];
  snprintf(file, sizeof file, "%s%s/%s", root, path, limit_name);
  uint64_t limit = number_file(file, UINT64_MAX);
  if (limit >= UINT64_C(1) << 62) return UINT64_MAX; /* v1 writes "no limit" as a huge number */
  snprintf(file, sizeof file, "%s%s/%s", root, path, usage_name);
  uint64_t used = number_file(file, 0);
  snprintf(file, sizeof file, "%s%s/memory.stat", root, path);
  uint64_t cache = reclaimable(file);
  used = used > cache ? used - cache : 0;
  return limit > used ? limit - used : 0;
}

/* The smallest amount that a cgroup and its ancestors leave; inside a cgroup namespace the walk
 * ends at the container's root. */
static uint64_t cgroup_walk(const char *root, char *path, const char *limit_name,
                            const char *usage_name) {
  uint64_t room = UINT64_MAX;
  for (;;) {
    uint64_t here = cgroup_room(root, path, limit_name, usage_name);
    if (here < room) room = here;
    char *slash = strrchr(path, '/');
    if (slash == NULL) return room;
    *slash = '\0';
    if (slash == path) {
      here = cgroup_room(root, "", limit_name, usage_name);
      return here < room ? here : room;
    }
  }
}

static uint64_t cgroup_available(void) {
  FILE *file = fopen("/proc/self/cgroup", "re");
  if (file == NULL) return UINT64_MAX;
  char line[1100];
  uint64_t room = UINT64_MAX;
  while (fgets(line, sizeof line, file) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    char *controllers = strchr(line, ':');
    char *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
    if (path == NULL) continue;
    *path++ = '\0';
    uint64_t here = UINT64_MAX;
    if (strcmp(controllers, ":") == 0) {
      here = cgroup_walk("/sys/fs/cgroup", path, "memory.max", "memory.current");
    } else if (strstr(controllers + 1, "memory") != NULL) {
      here = cgroup_walk("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes",
                         "memory.usage_in_bytes");
    }
    if (here < room) room = here;
  }
  fclose(file);
  return room;
}

uint64_t shmi_memory_available(const char **limited_by) {
  uint64_t available = field_kib("/proc/meminfo", "MemAvailable", UINT64_MAX);
  if (available != UINT64_MAX) available += field_kib("/proc/meminfo", "SwapFree", 0);
  *limited_by = "the machine";
  uint64_t cgroup = cgroup_available();
  if (cgroup < available) {
    available = cgroup;
    *limited_by = "the memory limit of this process's cgroup";
  }
  if (number_file("/proc/sys/vm/overcommit_memory", 0) == 2) {
    uint64_t limit = field_kib("/proc/meminfo", "CommitLimit", UINT64_MAX);
    uint64_t used = field_kib("/proc/meminfo", "Committed_AS", 0);
    uint64_t room = limit > used ? limit - used : 0;
    if (room < available) {
      available = room;
      *limited_by = "the commit limit (vm.overcommit_memory=2)";
    }
  }
  return available;
}

uint64_t shmi_memory_address_space(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
  uint64_t used = field_kib("/proc/self/status", "VmSize", 0);
  return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}

size_t shmi_memory_page_bytes(void) {
  static size_t bytes;
  size_t known = __atomic_load_n(&bytes, __ATOMIC_RELAXED);
  if (known != 0) return known;
  long asked = sysconf(_SC_PAGESIZE);
  known = asked > 0 ? (size_t)asked : 65536; /* a multiple of every page size */
#ifdef SHMI_PAGE_BYTES
  if (known < SHMI_PAGE_BYTES) known = SHMI_PAGE_BYTES;
#endif
  __atomic_store_n(&bytes, known, __ATOMIC_RELAXED);
  return known;
}

size_t shmi_memory_in_pages(size_t bytes) {
  size_t page = shmi_memory_page_bytes();
  return (bytes + page - 1) & ~(page - 1);
}
