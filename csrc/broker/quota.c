/* quota -- see quota.h. */
#include "broker/quota.h"

#include <string.h>

#include "base/error_detail.h"

static shm_quota_t table[SHM_MAX_QUOTAS];
static int table_count;

int shmi_quota_set(const shm_quota_t *rows, int count) {
  if (count < 0 || count > SHM_MAX_QUOTAS) {
    shmi_error_detail_set("a table of quotas has at most %d rows, not %d", SHM_MAX_QUOTAS, count);
    return SHM_EBAD_CONFIG;
  }
  for (int i = 0; i < count; i++) {
    if (rows[i].window > SHM_MAX_WINDOW || rows[i].weight > SHM_MAX_WEIGHT ||
        rows[i].calls_per_second > SHM_MAX_RATE ||
        memchr(rows[i].program, '\0', sizeof rows[i].program) == NULL) {
      shmi_error_detail_set("row %d of the quotas is out of range", i);
      return SHM_EBAD_CONFIG;
    }
  }
  if (count > 0) memcpy(table, rows, (size_t)count * sizeof *rows);
  table_count = count;
  return SHM_OK;
}

static int is_for_all(const shm_quota_t *row) { return !row->has_uid && row->program[0] == '\0'; }

static int fits(const shm_quota_t *row, uint32_t uid, const char *program) {
  return (!row->has_uid || row->uid == uid) &&
         (row->program[0] == '\0' || strcmp(row->program, program) == 0);
}

static void narrow(uint64_t *limit, uint64_t value) {
  if (value != 0 && (*limit == 0 || value < *limit)) *limit = value;
}

shm_quota_t shmi_quota_of(uint32_t uid, const char *program) {
  /* By column: window, weight, arena, parked, rate; those that name somebody, then those for all. */
  enum { COLUMNS = 5 };
  uint64_t named[COLUMNS] = {0}, all[COLUMNS] = {0};
  for (int i = 0; i < table_count; i++) {
    const shm_quota_t *row = &table[i];
    if (!fits(row, uid, program)) continue;
    uint64_t *limits = is_for_all(row) ? all : named;
    narrow(&limits[0], row->window);
    narrow(&limits[1], row->weight);
    narrow(&limits[2], row->arena_bytes);
    narrow(&limits[3], row->parked_bytes);
    narrow(&limits[4], row->calls_per_second);
  }
  for (int i = 0; i < COLUMNS; i++) {
    if (named[i] == 0) named[i] = all[i];
  }
  return (shm_quota_t){.window = (uint32_t)named[0],
                       .weight = (uint32_t)named[1],
                       .arena_bytes = named[2],
                       .parked_bytes = named[3],
                       .calls_per_second = named[4]};
}
