/* The list of the broker's descriptors: what is in it is closed, what is not is never touched. */
#include "harness.h"

#include <fcntl.h>
#include <sys/resource.h>

#include "base/descriptor.h"

static int is_open(int fd) { return fcntl(fd, F_GETFD) != -1; }
static int any_fd(void) {
  int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  CHECK(fd >= 0);
  return fd;
}

TEST(closing_takes_a_descriptor_out_of_the_list) {
  int fd = shmi_descriptor_own(any_fd()), number = fd;
  CHECK_EQ(shmi_descriptor_count(), 1);
  shmi_descriptor_close(&fd);
  CHECK_EQ(fd, -1);
  CHECK_EQ(shmi_descriptor_count(), 0);
  CHECK(!is_open(number));
  shmi_descriptor_close(&fd);
  CHECK_EQ(shmi_descriptor_count(), 0);
}

TEST(a_failed_making_call_passes_through) {
  CHECK_EQ(shmi_descriptor_own(-1), -1);
  CHECK_EQ(shmi_descriptor_count(), 0);
}

TEST(a_role_keeps_its_own_and_the_users_and_nothing_else) {
  int ours[5], users = any_fd();
  for (int i = 0; i < 5; i++) ours[i] = shmi_descriptor_own(any_fd());
  int keep[] = {ours[1], ours[3]};
  shmi_descriptor_keep_only(keep, 2);
  for (int i = 0; i < 5; i++) CHECK_EQ(is_open(ours[i]), i == 1 || i == 3);
  CHECK(is_open(users));
  CHECK_EQ(shmi_descriptor_count(), 2);
  close(users);
  shmi_descriptor_close(&ours[1]);
  shmi_descriptor_close(&ours[3]);
}

TEST(naming_a_users_descriptor_does_not_make_it_ours) {
  int users = any_fd(), ours = shmi_descriptor_own(any_fd());
  int keep[] = {users, -1};
  shmi_descriptor_keep_only(keep, 2);
  CHECK(is_open(users));
  CHECK(!is_open(ours));
  CHECK_EQ(shmi_descriptor_count(), 0);
  close(users);
}

TEST(high_numbers_are_kept_too) {
  struct rlimit limit;
  CHECK_SYS(getrlimit(RLIMIT_NOFILE, &limit));
  int low = any_fd(), wanted = limit.rlim_cur > 900 ? 800 : (int)limit.rlim_cur - 10;
  int high = shmi_descriptor_own(fcntl(low, F_DUPFD_CLOEXEC, wanted));
  CHECK(high >= wanted);
  CHECK_EQ(shmi_descriptor_count(), 1);
  shmi_descriptor_keep_only(NULL, 0);
  CHECK(!is_open(high));
  close(low);
}

TEST(room_raises_the_soft_limit_when_the_hard_one_allows) {
  struct rlimit limit;
  CHECK_SYS(getrlimit(RLIMIT_NOFILE, &limit));
  if (limit.rlim_max < 512) SKIP("the hard limit of open files is too low to be raised to");
  limit.rlim_cur = 100;
  CHECK_SYS(setrlimit(RLIMIT_NOFILE, &limit));
  CHECK_EQ(shmi_descriptor_room(300), SHM_OK);
  CHECK_SYS(getrlimit(RLIMIT_NOFILE, &limit));
  CHECK(limit.rlim_cur >= 300 + 64);
}

TEST(room_beyond_the_hard_limit_is_refused_with_emfile) {
  struct rlimit limit = {100, 100};
  CHECK_SYS(setrlimit(RLIMIT_NOFILE, &limit));
  errno = 0;
  CHECK_EQ(shmi_descriptor_room(300), SHM_ESYSTEM);
  CHECK_EQ(errno, EMFILE);
  CHECK_EQ(shmi_descriptor_room(30), SHM_OK);
}
