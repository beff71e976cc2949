/* fuzz_registry -- a function is found by its exact address or row, and nothing else is.
 *
 * Input: addresses to look up, eight bytes each. An odd one stands for a place near a row (bytes
 * from its start), since rows lie elsewhere in every run; others are looked up as they are, and
 * the functions registered are among those that are easily hit.
 */
#include "fuzz.h"

#include "ipc/function_table.h"

enum { FUNCTIONS = 512 };

static const shmi_function_t *made[FUNCTIONS];
static uint64_t names[FUNCTIONS]; /* what a message calls it */

static void set_up(void) {
  for (uint64_t i = 0; i < FUNCTIONS; i++) {
    /* Every other one a binding's row; C functions a page apart, or one byte. */
    uint64_t address = i % 2 ? 0 : i % 4 ? 4096 * i : UINT64_C(0x10000000) + i;
    shm_function_config_t config = {.name = "f", .func = (shm_func_t)(uintptr_t)address,
                                    .params_size = i};
    REQUIRE(shmi_function_table_add(&config, &made[i]) == SHM_OK && made[i] != NULL);
    names[i] = address != 0 ? address : (uint64_t)(uintptr_t)made[i];
    REQUIRE(made[i]->params_bytes >= (address == 0 ? (uint64_t)SHMI_FUNCTION_TABLE_HEADER_BYTES : i));
    const shmi_function_t *again = NULL;
    if (address != 0) {
      REQUIRE(shmi_function_table_add(&config, &again) == SHM_OK && again == made[i]);
    }
  }
  REQUIRE(shmi_function_table_count() == FUNCTIONS);
  REQUIRE(shmi_function_table_seal() == SHM_OK);
  shm_function_config_t late = {.name = "late"};
  const shmi_function_t *none = NULL;
  REQUIRE(shmi_function_table_add(&late, &none) == SHM_ESEALED && none == NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (made[0] == NULL) set_up();
  input_t in = {data, data + size};
  while (in.at < in.end) {
    uint64_t address = take(&in, 8);
    if (address & 1) {
      address = (uint64_t)(uintptr_t)made[address / 65536 % FUNCTIONS] + address / 2 % 512 - 128;
    }
    const shmi_function_t *expected = NULL;
    for (int i = 0; i < FUNCTIONS; i++) {
      if (names[i] == address) expected = made[i];
    }
    REQUIRE(shmi_function_table_find(address) == expected);
    const shmi_function_t *row = shmi_function_table_row((uint32_t)address);
    REQUIRE((row != NULL) == ((uint32_t)address < FUNCTIONS));
  }
  return 0;
}
