/* function_table -- see function_table.h. */
#include "ipc/function_table.h"

#include <string.h>
#include <sys/mman.h>

#include "ipc/scoreboard.h"

enum { HASH_SLOTS = 2 * SHM_MAX_FUNCTIONS };

/* In a mapping of its own, so that sealing it seals nothing else. */
typedef struct table {
  shmi_function_t rows[SHM_MAX_FUNCTIONS];
  uint16_t by_address[HASH_SLOTS]; /* row index + 1 of a C function; open addressing */
  uint32_t count;
  int sealed;
} table_t;

static table_t *table;

static size_t table_bytes(void) { return (sizeof *table + 4095) & ~(size_t)4095; }

static int table_make(void) {
  if (table != NULL) return SHM_OK;
  void *made = mmap(NULL, table_bytes(), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return SHM_ESYSTEM;
  table = made;
  return SHM_OK;
}

static uint32_t hash_address(uint64_t address) {
  return (uint32_t)((address * UINT64_C(0x9E3779B97F4A7C15)) >> 40) % HASH_SLOTS;
}

/* The slot that holds this C function, or the free one where it would go. */
static uint32_t slot_of(uint64_t address) {
  uint32_t slot = hash_address(address);
  while (table->by_address[slot] != 0 &&
         (uint64_t)(uintptr_t)table->rows[table->by_address[slot] - 1].func != address) {
    slot = (slot + 1) % HASH_SLOTS;
  }
  return slot;
}

int shmi_function_table_add(const shm_function_config_t *config, const shmi_function_t **row) {
  int status = table_make();
  if (status != SHM_OK) return status;
  if (table->sealed) return SHM_ESEALED;
  uint32_t slot = 0, index = table->count;
  if (config->func != NULL) {
    slot = slot_of((uint64_t)(uintptr_t)config->func);
    if (table->by_address[slot] != 0) index = table->by_address[slot] - 1u; /* again: replace */
  }
  if (index >= SHM_MAX_FUNCTIONS) return SHM_ETABLE_FULL;
  shmi_function_t *made = &table->rows[index];
  memset(made, 0, sizeof *made);
  made->func = config->func;
  made->params_bytes = config->params_size;
  if (config->func == NULL && made->params_bytes < SHMI_FUNCTION_TABLE_HEADER_BYTES) {
    made->params_bytes = SHMI_FUNCTION_TABLE_HEADER_BYTES;
  }
  made->batch_max_rows = config->batch_max_rows;
  made->batch_delay_ns = config->batch_delay_ns;
  made->hang_after_ns = config->hang_after_ns;
  made->flags = config->flags;
  made->max_queue = config->max_queue;
  made->index = index;
  if (config->name != NULL) strncpy(made->name, config->name, sizeof made->name - 1);
  if (index == table->count) {
    table->count++;
    if (config->func != NULL) table->by_address[slot] = (uint16_t)(index + 1);
  }
  *row = made;
  return SHM_OK;
}

uint64_t shmi_function_table_address(const shmi_function_t *row) {
  return (uint64_t)(row->func != NULL ? (uintptr_t)row->func : (uintptr_t)row);
}

int shmi_function_table_seal(void) {
  int status = table_make();
  if (status != SHM_OK) return status;
  for (uint32_t i = 0; i < table->count; i++) { /* for monitors */
    const shmi_function_t *row = &table->rows[i];
    shmi_scoreboard_name(i, shmi_function_table_address(row), row->name);
  }
  table->sealed = 1;
  return mprotect(table, table_bytes(), PROT_READ) == 0 ? SHM_OK : SHM_ESYSTEM;
}

int shmi_function_table_unseal(void) {
  if (table == NULL) return SHM_OK;
  if (mprotect(table, table_bytes(), PROT_READ | PROT_WRITE) != 0) return SHM_ESYSTEM;
  table->sealed = 0;
  return SHM_OK;
}

const shmi_function_t *shmi_function_table_find(uint64_t func_ptr) {
  if (table == NULL || func_ptr == 0) return NULL;
  uint64_t offset = func_ptr - (uint64_t)(uintptr_t)table->rows;
  if (offset < (uint64_t)table->count * sizeof(shmi_function_t)) {
    const shmi_function_t *row = &table->rows[offset / sizeof(shmi_function_t)];
    /* Only the exact start of a row, and only of a binding's: C functions are found by address. */
    return offset % sizeof(shmi_function_t) == 0 && row->func == NULL ? row : NULL;
  }
  uint32_t slot = slot_of(func_ptr);
  return table->by_address[slot] != 0 ? &table->rows[table->by_address[slot] - 1] : NULL;
}

const shmi_function_t *shmi_function_table_row(uint32_t index) {
  return table != NULL && index < table->count ? &table->rows[index] : NULL;
}

uint32_t shmi_function_table_count(void) { return table != NULL ? table->count : 0; }
