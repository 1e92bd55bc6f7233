/* Included at the top of every file that mypyc writes: attributes of structs, read quickly.

   A compiled module reads the attributes of a class that is not compiled through the general call, which
   looks the name up along the bases of the class each time. The interpreter remembers where it found a slot;
   this does the same, for all places of the program in one table. An entry holds while the class is unchanged:
   Python gives a class another version whenever it or one of its bases changes, and no two have the same. */

#ifndef ROAMCAST_COMPILED_H
#define ROAMCAST_COMPILED_H

#include "CPy.h"
#include <structmember.h>

#define SLOTS_REMEMBERED 4096 /* a power of two */

typedef struct {
    PyObject *name;
    unsigned int version;
    Py_ssize_t offset;
} RememberedSlot;

/* One table for all files: the linker merges them. */
__attribute__((weak)) RememberedSlot remembered_slots[SLOTS_REMEMBERED];

static PyObject *find_attribute(PyObject *object, PyObject *name, RememberedSlot *slot) {
    PyTypeObject *type = Py_TYPE(object);
    if (type->tp_getattro == PyObject_GenericGetAttr) {
        PyObject *found = _PyType_Lookup(type, name);
        if (found != NULL && Py_IS_TYPE(found, &PyMemberDescr_Type) && type->tp_version_tag != 0) {
            PyMemberDescrObject *member = (PyMemberDescrObject *)found;
            if (member->d_member->type == T_OBJECT_EX && PyType_IsSubtype(type, member->d_common.d_type)) {
                slot->name = name;
                slot->version = type->tp_version_tag;
                slot->offset = member->d_member->offset;
            }
        }
    }
    return PyObject_GetAttr(object, name);
}

static inline PyObject *get_attribute(PyObject *object, PyObject *name) {
    unsigned int version = Py_TYPE(object)->tp_version_tag;
    RememberedSlot *slot = &remembered_slots[(version ^ ((uintptr_t)name >> 4)) & (SLOTS_REMEMBERED - 1)];
    if (slot->version == version && slot->name == name) {
        PyObject *value = *(PyObject **)((char *)object + slot->offset);
        if (value != NULL) {
            Py_INCREF(value);
            return value;
        }
    }
    return find_attribute(object, name, slot);
}

#undef CPyObject_GetAttr
#define CPyObject_GetAttr(object, name) get_attribute((object), (name))

#endif
