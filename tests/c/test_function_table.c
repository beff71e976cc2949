/* The table of functions: only an exact row is ever found, and nothing changes once sealed. */
#include "harness.h"

#include "ipc/function_table.h"

static void one(void *params) { (void)params; }
static void two(void *params) { *(int *)params = 2; }
static void stranger(void *params) { *(int *)params = 3; }

static uint64_t address_of(shm_func_t func) { return (uint64_t)(uintptr_t)func; }

static const shmi_function_t *add(const char *name, shm_func_t func, size_t bytes) {
  shm_function_config_t config = {.name = name, .func = func, .params_size = bytes};
  const shmi_function_t *row = NULL;
  CHECK_EQ(shmi_function_table_add(&config, &row), SHM_OK);
  CHECK(row != NULL);
  return row;
}

TEST(a_c_function_is_found_by_its_address_alone) {
  const shmi_function_t *row = add("one", one, 24);
  CHECK(shmi_function_table_find(address_of(one)) == row);
  CHECK_EQ(row->params_bytes, 24);
  CHECK(shmi_function_table_find(address_of(one) + 1) == NULL);
  CHECK(shmi_function_table_find(address_of(one) - 1) == NULL);
  CHECK(shmi_function_table_find(address_of(stranger)) == NULL);
  CHECK(shmi_function_table_find((uint64_t)(uintptr_t)row) == NULL); /* its row is no name for it */
}

TEST(a_bindings_row_is_found_by_its_exact_start_alone) {
  const shmi_function_t *row = add("python", NULL, 0);
  uint64_t start = (uint64_t)(uintptr_t)row;
  CHECK(shmi_function_table_find(start) == row);
  for (uint64_t off = 1; off <= sizeof *row; off++) CHECK(shmi_function_table_find(start + off) == NULL);
  CHECK(shmi_function_table_find(start - 8) == NULL);
  CHECK(shmi_function_table_find(start - sizeof *row) == NULL);
  CHECK(row->params_bytes >= SHMI_FUNCTION_TABLE_HEADER_BYTES);
}

TEST(nothing_is_found_where_nothing_was_registered) {
  CHECK(shmi_function_table_find(address_of(one)) == NULL);
  CHECK_EQ(shmi_function_table_count(), 0);
  CHECK(shmi_function_table_row(0) == NULL);
  add("one", one, 0);
  CHECK(shmi_function_table_find(0) == NULL);
  CHECK(shmi_function_table_find(UINT64_MAX) == NULL);
  CHECK(shmi_function_table_find(1) == NULL);
}

TEST(registering_a_function_again_replaces_its_settings) {
  const shmi_function_t *first = add("one", one, 8);
  add("two", two, 8);
  CHECK(add("uno", one, 32) == first);
  CHECK_EQ(shmi_function_table_count(), 2);
  CHECK_EQ(first->params_bytes, 32);
  CHECK_STR_EQ(first->name, "uno");
  CHECK_STR_EQ(shm_function_name(address_of(two)), "two");
}

TEST(every_row_can_be_filled_and_found_and_one_more_is_refused) {
  const shmi_function_t *rows[SHM_MAX_FUNCTIONS];
  static char code[SHM_MAX_FUNCTIONS]; /* addresses that look like functions; never called */
  for (int i = 0; i < SHM_MAX_FUNCTIONS; i++) {
    shm_func_t func = i % 2 == 0 ? NULL : (shm_func_t)(uintptr_t)&code[i];
    rows[i] = add("f", func, 16);
  }
  for (int i = 0; i < SHM_MAX_FUNCTIONS; i++) {
    uint64_t name = i % 2 == 0 ? (uint64_t)(uintptr_t)rows[i] : (uint64_t)(uintptr_t)&code[i];
    CHECK(shmi_function_table_find(name) == rows[i]);
    CHECK(shmi_function_table_row((uint32_t)i) == rows[i]);
  }
  shm_function_config_t config = {.name = "late"};
  const shmi_function_t *row;
  CHECK_EQ(shmi_function_table_add(&config, &row), SHM_ETABLE_FULL);
  CHECK(shmi_function_table_find(address_of(stranger)) == NULL);
}

TEST(a_sealed_table_refuses_and_cannot_be_written) {
  const shmi_function_t *row = add("one", one, 8);
  CHECK_EQ(shmi_function_table_seal(), SHM_OK);
  shm_function_config_t config = {.name = "late", .func = two};
  const shmi_function_t *late;
  CHECK_EQ(shmi_function_table_add(&config, &late), SHM_ESEALED);
  CHECK(shmi_function_table_find(address_of(two)) == NULL);
  CHECK(shmi_function_table_find(address_of(one)) == row);
  fflush(NULL);
  pid_t writer = fork();
  if (writer == 0) {
    signal(SIGSEGV, SIG_DFL);
    ((shmi_function_t *)(uintptr_t)row)->func = stranger;
    _exit(0);
  }
  int status;
  CHECK_EQ(waitpid(writer, &status, 0), writer);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
  CHECK_EQ(shmi_function_table_unseal(), SHM_OK);
  add("two", two, 8);
}

TEST(an_empty_table_can_be_sealed_and_opened_again) {
  CHECK_EQ(shmi_function_table_unseal(), SHM_OK);
  CHECK_EQ(shmi_function_table_seal(), SHM_OK);
  CHECK(shmi_function_table_find(address_of(one)) == NULL);
  CHECK_EQ(shmi_function_table_unseal(), SHM_OK);
  add("one", one, 8);
}

TEST(a_long_name_is_cut_and_a_missing_one_is_empty) {
  char name[300];
  memset(name, 'n', sizeof name - 1);
  name[sizeof name - 1] = 0;
  const shmi_function_t *row = add(name, one, 0);
  CHECK_EQ(strlen(row->name), sizeof row->name - 1);
  add(NULL, two, 0);
  CHECK_STR_EQ(shm_function_name(address_of(two)), "");
  CHECK(shm_function_name(address_of(stranger)) == NULL);
}

TEST(the_public_calls_say_what_was_registered) {
  uint64_t row = 0;
  CHECK_EQ(shm_register(NULL, "none", 8), SHM_EBAD_FUNCTION);
  CHECK_EQ(shm_register(one, "one", 8), SHM_OK);
  shm_function_config_t config = {.name = "bound", .batch_max_rows = 8};
  CHECK_EQ(shm_register_function(&config, &row), SHM_OK);
  CHECK_STR_EQ(shm_function_name(row), "bound");
  CHECK_EQ(shmi_function_table_find(row)->batch_max_rows, 8);
  config.func = two;
  CHECK_EQ(shm_register_function(&config, &row), SHM_OK);
  CHECK_EQ(row, address_of(two));
}
