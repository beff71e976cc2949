/* A word by which one process tells another something: it wakes who sleeps on it, and no sleep is
 * longer than was asked for. */
#include "harness.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "shmgpu.h"

enum { MS = 1000000, LONG = 20000 };

static uint32_t *shared_word(void) {
  uint32_t *word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  *word = SHM_NOT_SAID;
  return word;
}

TEST(what_was_said_before_is_heard_at_once) {
  uint32_t *word = shared_word();
  CHECK_EQ(shm_word_say(word, SHM_SAID_FAILED), SHM_OK);
  CHECK_EQ(shm_word_wait(word, (int64_t)LONG * MS), SHM_SAID_FAILED);
}

TEST(nothing_is_heard_where_nothing_is_said) {
  uint32_t *word = shared_word();
  uint64_t began_ns = shmi_clock_ns();
  CHECK_EQ(shm_word_wait(word, 5 * MS), SHM_NOT_SAID);
  CHECK(shmi_clock_ns() - began_ns >= 4 * (uint64_t)MS);
}

TEST(only_a_word_in_which_nothing_was_said_is_written) {
  uint32_t *word = shared_word(), *other = word + 1;
  CHECK_EQ(shm_word_say(other, SHM_SAID_FAILED), SHM_EBAD_PARAMS);
  CHECK_EQ(*other, 0);
  CHECK_EQ(shm_word_say(word, SHM_SAID_RESULTS), SHM_OK);
  CHECK_EQ(shm_word_say(word, SHM_SAID_FAILED), SHM_EBAD_PARAMS);
  CHECK_EQ(*word, SHM_SAID_RESULTS);
}

TEST(a_process_that_sleeps_is_woken_by_another) {
  uint32_t *word = shared_word();
  pid_t other = fork();
  if (other == 0) {
    nanosleep(&(struct timespec){.tv_nsec = 20 * MS}, NULL);
    shm_word_say(word, SHM_SAID_RESULTS);
    _exit(0);
  }
  uint64_t began_ns = shmi_clock_ns();
  CHECK_EQ(shm_word_wait(word, (int64_t)LONG * MS), SHM_SAID_RESULTS);
  CHECK(shmi_clock_ns() - began_ns < (uint64_t)LONG * MS);
  CHECK_EQ(waitpid(other, NULL, 0), other);
}
