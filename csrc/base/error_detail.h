/* error_detail -- one more sentence about the last failure: numbers, names, errno's text. There is
 * one for each process, because a failure is reported where it happened, before anything else is
 * tried.
 *
 * Owns: that sentence. Must never: print.
 */
#ifndef SHMI_ERROR_DETAIL_H
#define SHMI_ERROR_DETAIL_H

__attribute__((format(printf, 1, 2))) void shmi_error_detail_set(const char *format, ...);
/* "what: strerror(errno)", and what lifts a limit. */
void shmi_error_detail_errno(const char *what);

#endif
