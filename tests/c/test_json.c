/* Numbers in JSON: whatever is written is read as the same, within the memory that there is. */
#include "harness.h"

#include "python/json/powers.c"
#include "python/json/read.c"
#include "python/json/write.c"

enum { COUNT = 2000, ROUNDS = 100 };

static uint64_t state = 7;

static uint64_t draw(void) { /* splitmix64 */
  uint64_t z = (state += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/* In memory that ends with the text, so that a sanitizer sees what is read behind it. */
static bool reads_shape(int kind, const char *text, size_t length, void *out, const size_t *shape,
                        int axes) {
  char *alone = malloc(length + 1);
  CHECK(alone != NULL);
  char *at = alone + 1; /* and at no place that suits wider loads */
  memcpy(at, text, length);
  const bool is_read = shmi_json_read(kind, at, at + length, out, shape, axes);
  free(alone);
  return is_read;
}

static bool reads(int kind, const char *text, size_t length, void *out, size_t n) {
  return reads_shape(kind, text, length, out, &n, 1);
}

TEST_WITHIN(floats_of_any_bits_are_read_as_they_were_written, 60) {
  CHECK(shmi_json_prepare());
  static float given[COUNT], found[COUNT];
  char *text = malloc(SHMI_JSON_ROOM(COUNT));
  CHECK(text != NULL);
  for (int round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < COUNT; i++) {
      const uint32_t bits = (uint32_t)draw();
      memcpy(&given[i], &bits, sizeof bits);
      if (!isfinite(given[i])) given[i] = -0.0f;
    }
    const size_t length = shmi_json_write(SHMI_JSON_FLOAT32, given, COUNT, text);
    CHECK(reads(SHMI_JSON_FLOAT32, text, length, found, COUNT));
    CHECK_EQ(memcmp(given, found, sizeof given), 0);
  }
  free(text);
}

TEST_WITHIN(doubles_of_any_bits_are_read_as_they_were_written_here_and_by_the_c_library, 60) {
  CHECK(shmi_json_prepare());
  static double given[COUNT], found[COUNT];
  char *text = malloc(SHMI_JSON_ROOM(COUNT)), one[64];
  CHECK(text != NULL);
  for (int round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < COUNT; i++) {
      const uint64_t bits = draw();
      memcpy(&given[i], &bits, sizeof bits);
      if (!isfinite(given[i])) given[i] = 0.5;
    }
    const size_t length = shmi_json_write(SHMI_JSON_FLOAT64, given, COUNT, text);
    CHECK(reads(SHMI_JSON_FLOAT64, text, length, found, COUNT));
    CHECK_EQ(memcmp(given, found, sizeof given), 0);
    for (int i = 0; i < COUNT; i += 20) {
      const int size = snprintf(one, sizeof one, "[%.*e]", (int)(draw() % 30), given[i]);
      CHECK(size > 0);
      const double wanted = strtod(one + 1, NULL);
      const bool is_read = reads(SHMI_JSON_FLOAT64, one, (size_t)size, found, 1);
      CHECK_EQ(is_read, isfinite(wanted) != 0);
      if (is_read) CHECK_EQ(memcmp(&wanted, found, sizeof wanted), 0);
    }
  }
  free(text);
}

TEST_WITHIN(whatever_the_bytes_nothing_is_read_behind_them, 60) {
  CHECK(shmi_json_prepare());
  static const char letters[] = "0123456789012.eE+-,, \n\t[]NaIt\"";
  char text[32];
  double found[4];
  for (int round = 0; round < 200 * COUNT; round++) {
    const size_t length = draw() % sizeof text;
    for (size_t i = 0; i < length; i++) text[i] = letters[draw() % (sizeof letters - 1)];
    if (length > 1) {
      text[0] = '[';
      text[length - 1] = ']';
    }
    for (int kind = 0; kind < SHMI_JSON_KINDS; kind++) {
      (void)reads(kind, text, length, found, 1 + draw() % 4);
      const size_t shape[] = {1 + draw() % 2, 1, 1 + draw() % 2};
      (void)reads_shape(kind, text, length, found, shape, 3);
    }
  }
}

TEST(nested_arrays_are_read_where_they_are_nested_as_the_shape_is) {
  CHECK(shmi_json_prepare());
  static const struct {
    const char *text;
    size_t shape[3];
    int axes;
  } right[] = {
      {"[1,2,3,4,5,6]", {6}, 1},           {"[[1,2],[3,4],[5,6]]", {3, 2}, 2},
      {"[[1],[2],[3],[4],[5],[6]]", {6, 1}, 2}, {"[[[1],[2],[3]],[[4],[5],[6]]]", {2, 3, 1}, 3},
      {"[ [ [1 ,2] ] ,\n[[3,4] ], [[ 5,6]]]", {3, 1, 2}, 3},
  };
  for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
    float found[6] = {0};
    const size_t length = strlen(right[i].text);
    CHECK(reads_shape(SHMI_JSON_FLOAT32, right[i].text, length, found, right[i].shape,
                      right[i].axes));
    for (int at = 0; at < 6; at++) CHECK(found[at] == (float)(at + 1));
    for (size_t other = 0; other < sizeof right / sizeof *right; other++) {
      const bool is_read = reads_shape(SHMI_JSON_FLOAT32, right[i].text, length, found,
                                       right[other].shape, right[other].axes);
      CHECK_EQ(is_read, other == i);
    }
    for (size_t cut = 0; cut < length; cut++) {
      CHECK(!reads_shape(SHMI_JSON_FLOAT32, right[i].text, cut, found, right[i].shape,
                         right[i].axes));
    }
  }
}
