/* callbacks -- the functions that Python lends to shm_host. Parsed by the cffi builder only:
 * `extern "Python"` is cffi's own syntax, so no C file includes this header.
 *
 * Owns: their prototypes. Must never: be included by C, or declare what shmgpu.h declares. */

/* CDEF-BEGIN */
extern "Python" {
  int shmpy_fork(void);
  int shmpy_run_helper(int helper, uint32_t generation);
  int shmpy_run_child(int child, uint32_t generation);
  void shmpy_on_event(const shm_event_t *event);
  int shmpy_on_signal(void);
  int shmpy_is_done(int child);
  void shmpy_exit(int status);
}
/* CDEF-END */
