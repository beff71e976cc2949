/* fault -- see fault.h. */
#include "base/fault.h"

#ifdef SHM_FAULTS

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FAULTS = 16, WORD = 32, ANY = -1, EXIT_0 = 0 };

static const char *const point_names[SHMI_FAULT_POINTS] = {
    [SHMI_FAULT_BEFORE_READ] = "before_read",
    [SHMI_FAULT_AFTER_READ] = "after_read",
    [SHMI_FAULT_IN_FUNCTION] = "in_function",
    [SHMI_FAULT_BEFORE_REPLY] = "before_reply",
    [SHMI_FAULT_AFTER_REPLY] = "after_reply",
    [SHMI_FAULT_IN_COLLECTIVE] = "in_collective",
};

static const struct {
  const char *name;
  int role;
} roles[] = {
    {"helper", SHM_ROLE_HELPER}, {"child", SHM_ROLE_CHILD}, {"parent", SHM_ROLE_PARENT}};

static const struct {
  const char *name;
  int signal; /* or EXIT_0 */
} actions[] = {{"SEGV", SIGSEGV}, {"KILL", SIGKILL}, {"ABRT", SIGABRT},
               {"STOP", SIGSTOP}, {"exit0", EXIT_0}};

typedef struct fault {
  int role, index;
  long generation;
  int point, action;
  unsigned long at;     /* it happens at this passing of the point */
  unsigned long passed; /* threads of a child may pass at once */
} fault_t;

static struct armed {
  int role, index;
  long generation;
  int count;
  fault_t faults[FAULTS]; /* of this role alone */
} armed;

/* ---- reading the text ---- */

/* Each reader takes what it knows from *at and moves on; 0 when it finds something else. */
static int take_word(const char **at, char word[WORD], const char *letters) {
  size_t length = strspn(*at, letters);
  if (length == 0 || length >= WORD) return 0;
  memcpy(word, *at, length);
  word[length] = 0;
  *at += length;
  return 1;
}

static int take_number(const char **at, long *number) {
  if (**at == '*') {
    *number = ANY;
    ++*at;
    return 1;
  }
  char *end;
  *number = strtol(*at, &end, 10);
  if (end == *at || *number < 0 || **at == '+' || **at == ' ') return 0;
  *at = end;
  return 1;
}

static int point_of(const char *name) {
  for (int i = 0; i < SHMI_FAULT_POINTS; i++) {
    if (strcmp(name, point_names[i]) == 0) return i;
  }
  return -1;
}

static int take_fault(const char **at, fault_t *fault) {
  static const char lower[] = "abcdefghijklmnopqrstuvwxyz_";
  static const char mixed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0";
  char word[WORD];
  long index = ANY, passing = 1;
  *fault = (fault_t){.role = SHM_ROLE_NONE, .generation = 1, .action = -1};
  if (!take_word(at, word, lower)) return 0;
  for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
    if (strcmp(word, roles[i].name) == 0) fault->role = roles[i].role;
  }
  if (fault->role == SHM_ROLE_NONE) return 0;
  if (**at != '@' && **at != '/' && !take_number(at, &index)) return 0;
  fault->index = (int)index;
  if (**at == '/') {
    ++*at;
    if (!take_number(at, &fault->generation)) return 0;
  }
  if (*(*at)++ != '@' || !take_word(at, word, lower)) return 0;
  fault->point = point_of(word);
  if (fault->point < 0 || *(*at)++ != '=' || !take_word(at, word, mixed)) return 0;
  for (size_t i = 0; i < sizeof actions / sizeof *actions; i++) {
    if (strcmp(word, actions[i].name) == 0) fault->action = actions[i].signal;
  }
  if (fault->action < 0) return 0;
  if (**at == '#') {
    ++*at;
    if (!take_number(at, &passing) || passing < 1) return 0;
  }
  fault->at = (unsigned long)passing;
  return 1;
}

static int is_mine(const fault_t *fault) {
  return fault->role == armed.role && (fault->index == ANY || fault->index == armed.index) &&
         (fault->generation == ANY || fault->generation == armed.generation);
}

int shm_fault_arm(const char *faults) {
  fault_t read[FAULTS];
  int count = 0;
  for (const char *at = faults;;) {
    at += strspn(at, "; ");
    if (*at == 0) break;
    if (armed.count + count == FAULTS || !take_fault(&at, &read[count])) return SHM_EBAD_CONFIG;
    at += strspn(at, " ");
    if (*at != 0 && *at != ';') return SHM_EBAD_CONFIG;
    count += is_mine(&read[count]);
  }
  memcpy(&armed.faults[armed.count], read, (size_t)count * sizeof *read);
  armed.count += count;
  return SHM_OK;
}

/* ---- being a role, and passing points ---- */

void shmi_fault_role(int role, int index, uint32_t generation) {
  armed = (struct armed){.role = role, .index = index, .generation = (long)generation};
  const char *text = getenv("SHMGPU_FAULTS");
  if (text == NULL || shm_fault_arm(text) == SHM_OK) return;
  dprintf(STDERR_FILENO,
          "SHMGPU_FAULTS=%s cannot be read: write it as "
          "\"helper0@before_reply=KILL#3; child*@after_read=exit0\".\n", text);
  abort(); /* a test whose fault never happens would prove nothing */
}

void shmi_fault_pass(enum shmi_fault_point point) {
  for (int i = 0; i < armed.count; i++) {
    fault_t *fault = &armed.faults[i];
    if (fault->point != (int)point) continue;
    if (__atomic_add_fetch(&fault->passed, 1, __ATOMIC_RELAXED) != fault->at) continue;
    if (fault->action == EXIT_0) _exit(0);
    raise(fault->action);
  }
}

int shm_fault_pass(const char *point) {
  int number = point_of(point);
  if (number < 0) return SHM_EBAD_CONFIG;
  shmi_fault_pass((enum shmi_fault_point)number);
  return SHM_OK;
}

#endif
