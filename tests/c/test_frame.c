/* What a child may send, at every limit. */
#include "harness.h"

#include "ipc/frame.h"

#define BASE UINT64_C(0x7f0000010000)
#define BYTES UINT64_C(0x10000)

static const shmi_frame_bounds_t bounds = {
    .arena_base = BASE, .arena_bytes = BYTES, .helper_mask = 0x5, .pool_count = 2};

static shmi_frame_t frame_at(uint64_t address) {
  return (shmi_frame_t){.msg = {.params = (void *)(uintptr_t)address}, .kind = SHMI_FRAME_CALL};
}

static int params_status(uint64_t address, uint64_t bytes) {
  shmi_frame_t frame = frame_at(address);
  return shmi_frame_check_params(&frame, &bounds, bytes);
}

TEST(a_parameter_block_must_lie_inside_the_arena) {
  static const struct {
    uint64_t address, bytes;
    int status;
  } rows[] = {
      {BASE, 1, SHM_OK},
      {BASE, BYTES, SHM_OK},
      {BASE, BYTES + 1, SHM_EBAD_PARAMS},
      {BASE, UINT64_MAX, SHM_EBAD_PARAMS},
      {BASE + 8, BYTES - 8, SHM_OK},
      {BASE + 8, BYTES - 7, SHM_EBAD_PARAMS},
      {BASE + 8, UINT64_MAX - 7, SHM_EBAD_PARAMS},
      {BASE + 8, UINT64_MAX - BASE, SHM_EBAD_PARAMS},   /* address + bytes wraps */
      {BASE + BYTES - 8, 8, SHM_OK},
      {BASE + BYTES - 8, 9, SHM_EBAD_PARAMS},
      {BASE + BYTES, 0, SHM_OK},                        /* nothing is asked for at the end */
      {BASE + BYTES, 1, SHM_EBAD_PARAMS},
      {BASE + BYTES + 8, 0, SHM_EBAD_PARAMS},
      {BASE - 8, 8, SHM_EBAD_PARAMS},
      {BASE - 8, 16, SHM_EBAD_PARAMS},
      {BASE - 8, 0, SHM_EBAD_PARAMS},
      {BASE + 1, 8, SHM_EBAD_PARAMS},                   /* misaligned */
      {BASE + 4, 8, SHM_EBAD_PARAMS},
      {BASE + 7, 0, SHM_EBAD_PARAMS},
      {0, 0, SHM_OK},                                   /* NULL, and nothing is asked for */
      {0, 1, SHM_EBAD_PARAMS},
      {8, 8, SHM_EBAD_PARAMS},
      {UINT64_MAX - 7, 8, SHM_EBAD_PARAMS},
      {UINT64_MAX - 7, 16, SHM_EBAD_PARAMS},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    int status = params_status(rows[i].address, rows[i].bytes);
    if (status != rows[i].status)
      harness_fail(__FILE__, __LINE__, "row %zu: %s, expected %s", i, shm_status_name(status),
                   shm_status_name(rows[i].status));
  }
}

TEST(a_range_check_never_overflows) {
  CHECK(shmi_range_inside(0, UINT64_MAX, 0, UINT64_MAX));
  CHECK(shmi_range_inside(0, 0, 0, 0));
  CHECK(!shmi_range_inside(0, 0, 0, 1));
  CHECK(!shmi_range_inside(BASE, BYTES, BASE - 1, 0));
  CHECK(!shmi_range_inside(BASE, BYTES, BASE + BYTES + 1, 0));
  CHECK(!shmi_range_inside(UINT64_MAX - 15, 16, 0, 1));
  CHECK(shmi_range_inside(UINT64_MAX - 15, 15, UINT64_MAX - 1, 1));
  /* Against plain arithmetic wide enough not to wrap, around every border. */
  uint64_t edges[] = {0,    1,    7,           8,           BASE - 8,         BASE - 1,
                      BASE, BASE + 1, BASE + BYTES - 1, BASE + BYTES, BASE + BYTES + 1,
                      UINT64_MAX - 8, UINT64_MAX - 1, UINT64_MAX, BYTES, BYTES - 1, BYTES + 1};
  size_t count = sizeof edges / sizeof *edges;
  for (size_t i = 0; i < count; i++) {
    for (size_t j = 0; j < count; j++) {
      unsigned __int128 end = (unsigned __int128)edges[i] + edges[j];
      int expected = edges[i] >= BASE && end <= (unsigned __int128)BASE + BYTES;
      CHECK_EQ(shmi_range_inside(BASE, BYTES, edges[i], edges[j]), expected);
    }
  }
}

TEST(only_calls_grows_and_cancels_come_from_a_child) {
  for (int kind = 0; kind < 256; kind++) {
    shmi_frame_t frame = {.kind = (uint8_t)kind};
    int known = kind == SHMI_FRAME_CALL || kind == SHMI_FRAME_GROW || kind == SHMI_FRAME_CANCEL;
    CHECK_EQ(shmi_frame_check_request(&frame, &bounds), known ? SHM_OK : SHM_EBAD_FRAME);
  }
}

TEST(priorities_pools_and_masks_have_their_range) {
  for (int priority = 0; priority < 256; priority++) {
    shmi_frame_t frame = frame_at(BASE);
    frame.priority = (uint8_t)priority;
    CHECK_EQ(shmi_frame_check_request(&frame, &bounds), priority < 4 ? SHM_OK : SHM_EBAD_FRAME);
  }
  for (int pool = 0; pool < 256; pool++) {
    shmi_frame_t frame = frame_at(BASE);
    frame.pool = (uint8_t)pool;
    CHECK_EQ(shmi_frame_check_request(&frame, &bounds), pool < 2 ? SHM_OK : SHM_EBAD_POOL);
  }
  static const struct {
    uint64_t mask;
    int status;
  } rows[] = {{0, SHM_OK},           {1, SHM_OK},          {4, SHM_OK},
              {5, SHM_OK},           {2, SHM_EPLACEMENT},  {8, SHM_EPLACEMENT},
              {~UINT64_C(5), SHM_EPLACEMENT}, {UINT64_MAX, SHM_OK}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    shmi_frame_t frame = frame_at(BASE);
    frame.placement = rows[i].mask;
    CHECK_EQ(shmi_frame_check_request(&frame, &bounds), rows[i].status);
  }
}

TEST(a_status_survives_the_wire) {
  for (int status = SHM_OK; status >= SHM_ENO_BOARD; status--) {
    CHECK_EQ(shmi_status_from_wire(shmi_status_to_wire(status)), status);
  }
}
