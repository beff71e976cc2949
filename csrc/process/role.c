/* role -- see role.h. */
#include "process/role.h"

#include <signal.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "ipc/gang.h"
#include "ipc/scoreboard.h"
#include "memory/arena.h"
#include "process/process.h"
#include "process/signals.h"

static int role = SHM_ROLE_NONE, role_index = -1;
static pid_t role_pid; /* the process that has the role: one forked from it inherits only this memory */

int shmi_role(void) { return role; }
int shmi_role_index(void) { return role_index; }
int shm_get_role(void) { return role; }

void shmi_role_set(int new_role, int index) {
  role = new_role;
  role_index = index;
  role_pid = getpid();
}

int shmi_role_is_inherited(void) { return role != SHM_ROLE_NONE && role_pid != getpid(); }

int shmi_role_begin(int new_role, int index, pid_t parent, const int ends[], int count) {
  shmi_role_set(new_role, index);
  shmi_signals_of_role(new_role);
  if (shmi_process_die_with(parent, SIGKILL) != 1) return SHM_EBROKER_DIED;
  shmi_process_offer_to_oom();
  int status = new_role == SHM_ROLE_HELPER ? shmi_arena_map_helper() : shmi_arena_map_child(index);
  if (status != SHM_OK) return status;
  shmi_arena_close_descriptors();
  if (new_role != SHM_ROLE_HELPER) shmi_gang_destroy(); /* no child meddles with gangs */
  shmi_descriptor_keep_only(ends, count);
  return shmi_scoreboard_become(new_role, index);
}

_Noreturn void shmi_role_end(const shm_host_t *host, int status) {
  if (host->exit != NULL) host->exit(status);
  _exit(status);
}
