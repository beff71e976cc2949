/* error_detail -- see error_detail.h. */
#include "base/error_detail.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "shmgpu.h"

static char text[512];

void shmi_error_detail_set(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
}

void shmi_error_detail_errno(const char *what) {
  int saved = errno;
  /* The one limit whose name the text of its error does not suggest: it holds for memory files. */
  const char *lift = saved == EFBIG ? ", by a limit of the shell: ulimit -f unlimited" : "";
  shmi_error_detail_set("%s: %s%s", what, strerror(saved), lift);
  errno = saved;
}

const char *shm_error_detail(void) { return text; }
