/* adaptive_spin -- see adaptive_spin.h. */
#include "child/adaptive_spin.h"

#include <sched.h>

#include "base/clock.h"
#include "ipc/scoreboard.h"

enum {
  SPIN_NS = 50000,
  SPIN_TRUST = 12,
  SPIN_SECOND_CHANCE = 6,
  SPIN_LOSS = 2,
  SPIN_RETRY = 128,
  SPIN_LOOKS = 64
};

static int cores_allowed(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static inline void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

void shmi_spin_open(shmi_spin_t *spin, const uint64_t *answered) {
  *spin = (shmi_spin_t){.cores = cores_allowed(), .trust = SPIN_SECOND_CHANCE, .answered = answered};
  shmi_spin_note(spin);
}

void shmi_spin_note(shmi_spin_t *spin) {
  spin->seen = __atomic_load_n(spin->answered, __ATOMIC_RELAXED);
}

int shmi_spin_pays(shmi_spin_t *spin) {
  if (spin->trust <= 0) {
    if (++spin->skipped < SPIN_RETRY) return 0;
    spin->skipped = 0;
    spin->trust = SPIN_SECOND_CHANCE;
  }
  return shmi_scoreboard_calls_out() * 2 <= spin->cores;
}

int shmi_spin(shmi_spin_t *spin) {
  if (!shmi_spin_pays(spin)) return 0;
  uint64_t end_ns = shmi_clock_ns() + SPIN_NS;
  do {
    for (int look = 0; look < SPIN_LOOKS; look++) {
      if (__atomic_load_n(spin->answered, __ATOMIC_RELAXED) != spin->seen) {
        if (spin->trust < SPIN_TRUST) spin->trust++;
        return 1;
      }
      relax();
    }
    sched_yield(); /* the process that is to answer may be waiting for this core */
  } while (shmi_clock_ns() < end_ns);
  spin->trust -= SPIN_LOSS;
  return 0;
}
