/* word -- see word.h. */
#include "ipc/word.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/status.h"

uint32_t shmi_word_wait(uint32_t *word, int64_t timeout_ns) {
  uint32_t what = __atomic_load_n(word, __ATOMIC_ACQUIRE);
  if (what != SHM_NOT_SAID) return what;
  const struct timespec most = {.tv_sec = (time_t)(timeout_ns / 1000000000),
                                .tv_nsec = (long)(timeout_ns % 1000000000)};
  syscall(SYS_futex, word, FUTEX_WAIT, SHM_NOT_SAID, &most, NULL, 0);
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

int shmi_word_say(uint32_t *word, uint32_t what) {
  uint32_t before = SHM_NOT_SAID;
  if (!__atomic_compare_exchange_n(word, &before, what, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
    return SHM_EBAD_PARAMS;
  }
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
  return SHM_OK;
}
