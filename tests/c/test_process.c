/* Processes by pidfd: how they ended, no strangers, and nothing of the user's touched. */
#include "harness.h"

#include <poll.h>

#include "base/descriptor.h"
#include "process/process.h"

static int fork_that_fails(void) {
  errno = EAGAIN;
  return -1;
}

/* A process that ends with this status, or -signal. */
static shmi_process_t spawn(int how) {
  shmi_process_t process = {0, -1};
  fflush(NULL);
  int got = shmi_process_fork(NULL, &process);
  CHECK(got >= 0);
  if (got == 0) {
    if (how < 0) {
      signal(-how, SIG_DFL);
      raise(-how);
    }
    if (how == 1000)
      for (;;) pause();
    _exit(how);
  }
  CHECK(process.pid > 0);
  CHECK(process.pidfd >= 0);
  return process;
}

TEST(an_end_is_told_with_its_status_or_its_signal) {
  static const int hows[] = {0, 1, 3, 255, -SIGKILL, -SIGTERM, -SIGABRT};
  int fds = harness_open_fds();
  for (size_t i = 0; i < sizeof hows / sizeof *hows; i++) {
    shmi_process_t process = spawn(hows[i]);
    int status = 12345;
    CHECK_EQ(shmi_process_reap(&process, 1, &status), 1);
    CHECK_EQ(status, hows[i]);
    CHECK_EQ(process.pid, 0);
    CHECK_EQ(process.pidfd, -1);
    CHECK_EQ(shmi_process_reap(&process, 1, &status), 0); /* once only */
  }
  CHECK_EQ(harness_open_fds(), fds);
  CHECK_EQ(shmi_descriptor_count(), 0);
}

TEST(a_living_process_is_not_reaped_and_its_pidfd_tells_its_end) {
  shmi_process_t process = spawn(1000);
  int status;
  CHECK_EQ(shmi_process_reap(&process, 0, &status), 0);
  struct pollfd waiting = {process.pidfd, POLLIN, 0};
  CHECK_EQ(poll(&waiting, 1, 0), 0);
  CHECK_EQ(shmi_process_signal(&process, SIGKILL), SHM_OK);
  CHECK_EQ(poll(&waiting, 1, 5000), 1);
  CHECK_EQ(shmi_process_signal(&process, SIGKILL), SHM_OK); /* dead already: nothing to do */
  CHECK_EQ(shmi_process_reap(&process, 0, &status), 1);
  CHECK_EQ(status, -SIGKILL);
  CHECK_EQ(shmi_process_signal(&process, SIGKILL), SHM_OK); /* forgotten: nobody is signalled */
}

TEST(waiting_for_ours_leaves_the_users_children_alone) {
  fflush(NULL);
  pid_t users = fork();
  if (users == 0) _exit(42);
  shmi_process_t process = spawn(7);
  int status;
  CHECK_EQ(shmi_process_reap(&process, 1, &status), 1);
  CHECK_EQ(status, 7);
  CHECK_EQ(waitpid(users, &status, 0), users);
  CHECK_EQ(WEXITSTATUS(status), 42);
}

TEST(a_process_reaped_by_somebody_else_is_gone_all_the_same) {
  shmi_process_t process = spawn(0);
  int status;
  CHECK_EQ(waitpid(process.pid, NULL, 0), process.pid);
  CHECK_EQ(shmi_process_reap(&process, 1, &status), 1);
  CHECK_EQ(process.pid, 0);
}

TEST(a_fork_that_fails_is_told_with_its_reason) {
  shmi_process_t process = {0, -1};
  CHECK_EQ(shmi_process_fork(fork_that_fails, &process), SHM_ESYSTEM);
  CHECK_EQ(errno, EAGAIN);
  CHECK(strstr(shm_error_detail(), strerror(EAGAIN)) != NULL);
  CHECK_EQ(shmi_descriptor_count(), 0);
}

TEST(a_process_we_did_not_fork_can_be_watched) {
  fflush(NULL);
  int hold[2];
  CHECK_SYS(pipe(hold));
  pid_t middle = fork(); /* its child is not ours to wait for */
  if (middle == 0) {
    pid_t other = fork();
    if (other == 0) {
      char byte;
      close(hold[1]);
      if (read(hold[0], &byte, 1) != 0) _exit(1);
      _exit(0);
    }
    close(hold[1]);
    waitpid(other, NULL, 0);
    _exit(0);
  }
  close(hold[0]);
  shmi_process_t process;
  CHECK_EQ(shmi_process_open(middle, &process), SHM_OK);
  struct pollfd waiting = {process.pidfd, POLLIN, 0};
  CHECK_EQ(poll(&waiting, 1, 0), 0);
  close(hold[1]);
  CHECK_EQ(poll(&waiting, 1, 5000), 1);
  shmi_process_forget(&process);
  CHECK_EQ(shmi_descriptor_count(), 0);
  CHECK_EQ(waitpid(middle, NULL, 0), middle); /* forgetting did not reap it */
}

TEST(a_role_dies_with_the_process_that_forked_it) {
  int told[2];
  CHECK_SYS(pipe(told));
  CHECK_SYS(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0));
  fflush(NULL);
  pid_t parent = fork();
  if (parent == 0) {
    pid_t self = getpid();
    if (fork() == 0) {
      CHECK_EQ(shmi_process_die_with(self, SIGKILL), 1);
      CHECK_EQ(write(told[1], "r", 1), 1);
      for (;;) pause();
    }
    for (;;) pause();
  }
  char byte;
  CHECK_EQ(read(told[0], &byte, 1), 1);
  close(told[1]);
  CHECK_SYS(kill(parent, SIGKILL));
  CHECK_EQ(read(told[0], &byte, 1), 0); /* end of file: the role, its last writer, is gone */
  while (waitpid(-1, NULL, 0) > 0) {
  }
  CHECK_EQ(errno, ECHILD);
}

TEST(a_role_whose_parent_is_gone_already_is_told) {
  CHECK_EQ(shmi_process_die_with(1 << 30, SIGKILL), 0);
  CHECK_SYS(prctl(PR_SET_PDEATHSIG, SIGKILL));
}

static int oom_score(void) {
  FILE *file = fopen("/proc/self/oom_score_adj", "re");
  int score = 0;
  CHECK(file != NULL);
  CHECK_EQ(fscanf(file, "%d", &score), 1);
  fclose(file);
  return score;
}

TEST(a_role_offers_itself_to_the_oom_killer_more_than_the_parent_whatever_that_has) {
  for (int score = oom_score(); score < 1000; score = oom_score()) {
    shmi_process_offer_to_oom();
    CHECK_EQ(oom_score(), score + 300 < 1000 ? score + 300 : 1000);
  }
  shmi_process_offer_to_oom();
  CHECK_EQ(oom_score(), 1000);
}
