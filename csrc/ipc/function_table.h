/* function_table -- the table of functions that may be called, sealed before the first fork.
 *
 * A message names its function by an address. That is safe only because nothing is ever called that
 * is not exactly a row of this table, and because the table cannot change once a broker runs: its
 * pages are read-only then, and every forked role has the same copy.
 *
 * The row of a C function is found by the function's address, a binding's row by the row's own
 * address.
 *
 * Owns: the rows and the hash over the C functions. Must never: call anything.
 */
#ifndef SHMI_FUNCTION_TABLE_H
#define SHMI_FUNCTION_TABLE_H

#include "base/status.h"

typedef struct shmi_function {
  shm_func_t func;         /* NULL: a binding's row */
  uint64_t params_bytes;   /* at least this much of the block must lie in the arena */
  uint64_t batch_delay_ns;
  uint64_t hang_after_ns;
  uint32_t batch_max_rows; /* 0: never batched */
  uint32_t flags;          /* shm_function_flags */
  uint32_t index;
  uint32_t max_queue;      /* calls that may wait at once; 0: any number */
  char name[80];
} shmi_function_t;

/* A binding's block starts with its 32-bit length, so that much must be there. */
enum { SHMI_FUNCTION_TABLE_HEADER_BYTES = 8 };

int shmi_function_table_add(const shm_function_config_t *config, const shmi_function_t **row);
/* Make the table read-only (before the first fork), or writable again (no broker runs). */
int shmi_function_table_seal(void);
int shmi_function_table_unseal(void);
/* The row that func_ptr names exactly, or NULL. */
const shmi_function_t *shmi_function_table_find(uint64_t func_ptr);
const shmi_function_t *shmi_function_table_row(uint32_t index);
uint32_t shmi_function_table_count(void);
uint64_t shmi_function_table_address(const shmi_function_t *row); /* by which messages name it */

#endif
