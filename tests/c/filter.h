/* A container's filter, which a test puts on itself: a system call is refused from then on. */
#ifndef TESTS_FILTER_H
#define TESTS_FILTER_H

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define FILTER_OR_SKIP(installed) \
  if (!(installed)) SKIP("no seccomp filter can be installed here")

static int filter_install(struct sock_filter *rules, unsigned short count) {
  struct sock_fprog program = {.len = count, .filter = rules};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* That call fails with error, where its argument of that number is value. 0: it cannot be had. */
__attribute__((unused)) static int filter_refuse_with(long call, int argument, uint32_t value,
                                                      int error) {
  struct sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
               (uint32_t)(offsetof(struct seccomp_data, args) + (size_t)argument * sizeof(uint64_t))),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  return filter_install(rules, sizeof rules / sizeof *rules);
}

/* That call fails with error, whatever it is asked for. */
__attribute__((unused)) static int filter_refuse(long call, int error) {
  struct sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  return filter_install(rules, sizeof rules / sizeof *rules);
}

#endif
