/* fault -- points where a test makes a role die, stop or leave. A normal build contains none of it.
 *
 * The test build (-DSHM_FAULTS) has five points in every role, which correspond to each other: a
 * role reads, works and writes.
 *
 *   | point        | helper                       | child                | parent                  |
 *   |--------------|------------------------------|----------------------|-------------------------|
 *   | before_read  | frames may lie in its pipe   | before reading       | awake, nothing read yet |
 *   | after_read   | frames in its private queue  | replies not settled  | frames not yet queued   |
 *   | in_function  | a function executes          | in its main          | queued, not handed out  |
 *   | before_reply | control page says finished   | before its request   | replies due, unwritten  |
 *   | after_reply  | replies are in the pipe      | its request is out   | replies are written     |
 *
 * A helper passes in_collective as well: in a gang, before and after whatever others may wait for.
 *
 * (Functions in Python, and a child's main, pass in_function by a call of their own.)
 *
 * A role reads its faults from SHMGPU_FAULTS when it begins; they are separated by `;`:
 *
 *   helper0@before_reply=KILL#3; child*@after_read=exit0; helper1/2@in_function=STOP
 *
 * role and index (or *); /generation (or *), 1 by default, so that a replacement survives; point;
 * SEGV, KILL, ABRT, STOP or exit0; #n: the n-th time that the point is passed, 1 by default. Each
 * happens once.
 *
 * Owns: the faults armed in this process. Must never: cost a normal build one instruction.
 */
#ifndef SHMI_FAULT_H
#define SHMI_FAULT_H

#include "base/status.h"

#ifdef SHM_FAULTS

enum shmi_fault_point {
  SHMI_FAULT_BEFORE_READ,
  SHMI_FAULT_AFTER_READ,
  SHMI_FAULT_IN_FUNCTION,
  SHMI_FAULT_BEFORE_REPLY,
  SHMI_FAULT_AFTER_REPLY,
  SHMI_FAULT_IN_COLLECTIVE,
  SHMI_FAULT_POINTS
};

/* This process has that role from now on: forget what was armed, and read the variable. */
void shmi_fault_role(int role, int index, uint32_t generation);
void shmi_fault_pass(enum shmi_fault_point point);

#define SHMI_FAULT_ROLE(role, index, generation) shmi_fault_role(role, index, generation)
#define SHMI_FAULT(point) shmi_fault_pass(SHMI_FAULT_##point)

/* Only the test build's binding has these. */
/* CDEF-BEGIN */
/* In a role: arm more faults. SHM_EBAD_CONFIG when the text cannot be read; then none is armed. */
int shm_fault_arm(const char *faults);
/* In a test's own code: pass the point of that name. SHM_EBAD_CONFIG when there is none. */
int shm_fault_pass(const char *point);
/* CDEF-END */

#else
#define SHMI_FAULT_ROLE(role, index, generation) ((void)0)
#define SHMI_FAULT(point) ((void)0)
#endif

#endif
