/*
 * The rows of a COPY TO that have arrived, in one call: three calls a row by ctypes take longer than
 * all else that is done for a row.
 *
 * libpq's functions come as addresses, because psycopg2 may carry a libpq of its own, and another
 * one cannot read its connections. None of the three waits, so the interpreter's lock is kept.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000 /* one file for Python 3.11 and all later ones */
#include <Python.h>
#include <stdint.h>

typedef int (*get_copy_data)(void *conn, char **row, int is_async);
typedef int (*consume_input)(void *conn);
typedef void (*free_memory)(void *row);

#define BLOCKED 0
#define FAILED (-2)

PyDoc_STRVAR(read_rows_doc,
"read_rows(PQgetCopyData, PQconsumeInput, PQfreemem, conn, max_bytes, /)\n"
"--\n"
"\n"
"Return the rows that have arrived, and why there are no more.\n"
"\n"
"The first four are addresses. It ends with the row that reaches max_bytes. The second value is\n"
"positive then, 0 if more have to be waited for, -1 at the end, -2 after an error.");

static PyObject *
read_rows(PyObject *module, PyObject *args)
{
    unsigned long long get_address, consume_address, free_address, conn_address;
    Py_ssize_t max_bytes, bytes = 0;
    int got = 1, has_consumed = 0;

    (void)module;
    if (!PyArg_ParseTuple(args, "KKKKn:read_rows", &get_address, &consume_address, &free_address,
                          &conn_address, &max_bytes))
        return NULL;
    if (!get_address || !consume_address || !free_address || !conn_address) {
        PyErr_SetString(PyExc_ValueError, "an address is 0");
        return NULL;
    }
    get_copy_data get = (get_copy_data)(uintptr_t)get_address;
    consume_input consume = (consume_input)(uintptr_t)consume_address;
    free_memory release = (free_memory)(uintptr_t)free_address;
    void *conn = (void *)(uintptr_t)conn_address;

    PyObject *rows = PyList_New(0);
    if (rows == NULL)
        return NULL;
    while (bytes < max_bytes) {
        char *row = NULL;
        got = get(conn, &row, 1);
        if (got == BLOCKED && !has_consumed) {
            has_consumed = 1;
            if (consume(conn))
                continue;
            got = FAILED;
        }
        if (got <= 0)
            break;
        PyObject *item = PyBytes_FromStringAndSize(row, got);
        release(row);
        if (item == NULL || PyList_Append(rows, item) < 0) {
            Py_XDECREF(item);
            Py_DECREF(rows);
            return NULL;
        }
        Py_DECREF(item);
        bytes += got;
        has_consumed = 0;
    }
    return Py_BuildValue("(Ni)", rows, got);
}

static PyMethodDef methods[] = {
    {"read_rows", read_rows, METH_VARARGS, read_rows_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_copying",
    .m_doc = "Read the rows of a COPY without a call of Python for each.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__copying(void)
{
    return PyModuleDef_Init(&definition);
}
