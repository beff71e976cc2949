/* Every outcome has one code, one name and one sentence. */
#include "harness.h"

#include "base/status.h"

typedef struct row {
  const char *name;
  int code;
  const char *text;
} row_t;

#define ROW(name, code, sentence) {#name, code, sentence},
static const row_t rows[] = {SHMI_STATUS_TABLE(ROW)};
enum { ROWS = sizeof rows / sizeof *rows };

TEST(every_code_gives_its_name_and_its_sentence) {
  for (int i = 0; i < ROWS; i++) {
    CHECK_STR_EQ(shm_status_name(rows[i].code), rows[i].name);
    CHECK_STR_EQ(shm_status_text(rows[i].code), rows[i].text);
  }
}

TEST(codes_are_consecutive_so_that_none_is_missing) {
  for (int i = 0; i < ROWS; i++) CHECK_EQ(rows[i].code, -i);
}

TEST(no_two_rows_share_a_name_or_a_sentence) {
  for (int i = 0; i < ROWS; i++) {
    for (int j = i + 1; j < ROWS; j++) {
      CHECK(strcmp(rows[i].name, rows[j].name) != 0);
      CHECK(strcmp(rows[i].text, rows[j].text) != 0);
    }
  }
}

TEST(unknown_codes_have_a_name_and_a_sentence_too) {
  static const int unknown[] = {1, -ROWS, 12345, INT32_MIN, INT32_MAX};
  for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
    CHECK_STR_EQ(shm_status_name(unknown[i]), "SHM_EUNKNOWN");
    CHECK(strlen(shm_status_text(unknown[i])) > 10);
  }
}

TEST(a_code_survives_the_wire) {
  for (int i = 0; i < ROWS; i++) CHECK(-rows[i].code <= UINT16_MAX);
}
