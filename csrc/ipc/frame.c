/* frame -- the validation of frames. See frame.h. */
#include "ipc/frame.h"

int shmi_frame_check_request(const shmi_frame_t *frame, const shmi_frame_bounds_t *bounds) {
  switch (frame->kind) {
    case SHMI_FRAME_CALL:
      break;
    case SHMI_FRAME_GROW:
    case SHMI_FRAME_CANCEL:
      return SHM_OK; /* only the sequence number and the token matter, and both are looked up */
    default:
      return SHM_EBAD_FRAME;
  }
  if (frame->priority >= SHMI_PRIORITIES) return SHM_EBAD_FRAME;
  if (frame->pool >= bounds->pool_count) return SHM_EBAD_POOL;
  uint8_t known = SHMI_FRAME_GANG | SHMI_FRAME_BROADCAST | SHMI_FRAME_WATCHED;
  if ((frame->flags & ~known) != 0) return SHM_EBAD_FRAME;
  if ((frame->flags & SHMI_FRAME_BROADCAST) != 0 && /* it runs alone, everywhere in its pool */
      ((frame->flags & SHMI_FRAME_GANG) != 0 || frame->placement != 0 || frame->batch_key != 0)) {
    return SHM_EBAD_FRAME;
  }
  if ((frame->flags & SHMI_FRAME_GANG) != 0 &&
      (frame->placement == 0 || (frame->placement & ~bounds->helper_mask) != 0)) {
    return SHM_EPLACEMENT; /* a gang runs on all helpers that it names, or not at all */
  }
  if (frame->placement != 0 && (frame->placement & bounds->helper_mask) == 0) {
    return SHM_EPLACEMENT;
  }
  return SHM_OK;
}

int shmi_frame_check_params(const shmi_frame_t *frame, const shmi_frame_bounds_t *bounds,
                            uint64_t params_bytes) {
  uint64_t address = (uint64_t)(uintptr_t)frame->msg.params;
  if (address == 0 && params_bytes == 0) return SHM_OK;
  if ((address & 7) != 0) return SHM_EBAD_PARAMS;
  return shmi_range_inside(bounds->arena_base, bounds->arena_bytes, address, params_bytes)
             ? SHM_OK
             : SHM_EBAD_PARAMS;
}
