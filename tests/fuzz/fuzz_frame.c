/* fuzz_frame -- whatever frame the checks let pass keeps its bounds, by independent arithmetic.
 *
 * Input: bounds (arena base, bytes, helpers, pools), the bytes a function wants, then frames.
 */
#include "fuzz.h"

#include "ipc/frame.h"

typedef __uint128_t wide_t; /* in which no sum of two 64-bit numbers overflows */

static int inside(uint64_t base, uint64_t capacity, uint64_t address, uint64_t bytes) {
  return (wide_t)address >= base && (wide_t)address + bytes <= (wide_t)base + capacity;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  input_t in = {data, data + size};
  shmi_frame_bounds_t bounds = {.arena_base = take(&in, 8), .arena_bytes = take(&in, 8)};
  /* As arenas are: page-aligned, and within the address space. */
  bounds.arena_base &= UINT64_C(0x7ffffffff000);
  bounds.arena_bytes &= UINT64_C(0x3ffffffff);
  uint64_t helpers = 1 + take(&in, 1) % 64;
  bounds.helper_mask = helpers == 64 ? UINT64_MAX : (UINT64_C(1) << helpers) - 1;
  bounds.pool_count = 1 + (int)(take(&in, 1) % 16);
  uint64_t wanted = take(&in, 8);
  while (in.at < in.end) {
    shmi_frame_t frame;
    take_bytes(&in, &frame, sizeof frame);
    uint64_t address = (uint64_t)(uintptr_t)frame.msg.params;
    int request = shmi_frame_check_request(&frame, &bounds);
    if (request == SHM_OK && frame.kind == SHMI_FRAME_CALL) {
      REQUIRE(frame.priority < SHMI_PRIORITIES);
      REQUIRE(frame.pool < bounds.pool_count);
      REQUIRE((frame.flags & ~SHMI_FRAME_GANG) == 0);
      if (frame.placement != 0) {
        REQUIRE((frame.placement & bounds.helper_mask) != 0);
        REQUIRE((uint64_t)__builtin_ctzll(frame.placement & bounds.helper_mask) < helpers);
      }
      if (frame.flags & SHMI_FRAME_GANG) {
        REQUIRE(frame.placement != 0 && (frame.placement & ~bounds.helper_mask) == 0);
      }
    } else if (request == SHM_OK) {
      REQUIRE(frame.kind == SHMI_FRAME_GROW || frame.kind == SHMI_FRAME_CANCEL);
    } else {
      REQUIRE(request == SHM_EBAD_FRAME || request == SHM_EBAD_POOL || request == SHM_EPLACEMENT);
    }
    int lies_inside = inside(bounds.arena_base, bounds.arena_bytes, address, wanted);
    REQUIRE(shmi_range_inside(bounds.arena_base, bounds.arena_bytes, address, wanted) ==
            lies_inside);
    int params = shmi_frame_check_params(&frame, &bounds, wanted);
    int expected = (lies_inside && address % 8 == 0) || (address == 0 && wanted == 0);
    REQUIRE(params == (expected ? SHM_OK : SHM_EBAD_PARAMS));
  }
  return 0;
}
