/* adaptive_spin -- see adaptive_spin.h. */
#include "ipc/adaptive_spin.h"

#include <sched.h>

#include "base/clock.h"
#include "base/cores.h"
#include "ipc/scoreboard.h"

enum {
  NEAR_NS = 50000,
  SLACK_NS = 50000,
  LOST_NS = 1000000, /* others take a core for longer; who is waited for, for less */
  LEARN = 8,         /* a new time counts for one of so many */
  FIRST_SKIP = 64,   /* calls */
  LAST_SKIP = 8192,
  RETRY = 128        /* calls, for those who do something else when an answer is not near */
};

static int is_forbidden;

void shmi_spin_allow(int allowed) { is_forbidden = !allowed; }

void shmi_spin_open(shmi_spin_t *spin, uint64_t longest_ns) {
  *spin = (shmi_spin_t){.cores = is_forbidden ? 0 : shmi_cores_allowed(), .longest_ns = longest_ns};
}

void shmi_spin_learn(shmi_spin_t *spin, uint64_t waited_ns) {
  uint64_t most_ns = 2 * spin->longest_ns;
  if (waited_ns > most_ns) waited_ns = most_ns; /* one that hangs is soon forgotten */
  spin->usual_ns = spin->usual_ns == 0
                       ? waited_ns
                       : (spin->usual_ns * (LEARN - 1) + waited_ns) / LEARN;
}

static int has_cores(const shmi_spin_t *spin) {
  return spin->cores > 1 && shmi_scoreboard_calls_out() * 2 <= spin->cores;
}

/* Whether the core was lost lately; this call is counted. */
static int must_skip(shmi_spin_t *spin) {
  if (spin->to_skip == 0) return 0;
  spin->to_skip--;
  return 1;
}

int shmi_spin_is_near(shmi_spin_t *spin) {
  if (must_skip(spin) || !has_cores(spin)) return 0;
  if (spin->usual_ns > NEAR_NS && ++spin->far < RETRY) return 0;
  spin->far = 0;
  return 1;
}

/* Others want the core: the more often that is found, the later it is looked for again. */
static void lose_core(shmi_spin_t *spin) {
  spin->skip *= 2;
  if (spin->skip < FIRST_SKIP) spin->skip = FIRST_SKIP;
  if (spin->skip > LAST_SKIP) spin->skip = LAST_SKIP;
  spin->to_skip = spin->skip;
}

int shmi_spin(shmi_spin_t *spin, int looks, int (*is_here)(void *), void *what) {
  if (spin->usual_ns > spin->longest_ns || must_skip(spin) || !has_cores(spin)) return 0;
  uint64_t longest_ns = 2 * spin->usual_ns + SLACK_NS;
  if (longest_ns > spin->longest_ns) longest_ns = spin->longest_ns;
  const uint64_t begin_ns = shmi_clock_ns();
  for (uint64_t now_ns = begin_ns; now_ns - begin_ns < longest_ns;) {
    for (int look = 0; look < looks; look++) {
      if (is_here(what)) {
        spin->skip /= 2;
        return 1;
      }
      shmi_cores_relax();
    }
    sched_yield(); /* the process that is waited for may be waiting for this core */
    const uint64_t before_ns = now_ns;
    now_ns = shmi_clock_ns();
    if (now_ns - before_ns > LOST_NS) {
      lose_core(spin);
      return 0;
    }
  }
  return 0;
}
