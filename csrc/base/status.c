/* status -- the table turned into two look-ups. See status.h. */
#include "base/status.h"

#define SHMI_STATUS_CHECK(name, code, sentence) \
  _Static_assert((int)name == (code), #name " differs between shmgpu.h and the status table");
SHMI_STATUS_TABLE(SHMI_STATUS_CHECK)

const char *shm_status_name(int status) {
  switch (status) {
#define SHMI_STATUS_NAME(name, code, sentence) \
  case code:                                   \
    return #name;
    SHMI_STATUS_TABLE(SHMI_STATUS_NAME)
    default:
      return "SHM_EUNKNOWN";
  }
}

const char *shm_status_text(int status) {
  switch (status) {
#define SHMI_STATUS_TEXT(name, code, sentence) \
  case code:                                   \
    return sentence;
    SHMI_STATUS_TABLE(SHMI_STATUS_TEXT)
    default:
      return "an unknown status: the caller and the library are of different versions";
  }
}
