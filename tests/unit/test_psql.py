"""The SQL shell finds the same database as everybody else."""

from dukou.local.psql import libpq


def test_a_socket_folder_is_the_host():
    assert libpq("postgresql+psycopg://dukou@/dukou?host=/tmp/x") == {
        "PGHOST": "/tmp/x",
        "PGUSER": "dukou",
        "PGDATABASE": "dukou",
    }


def test_a_password_goes_into_the_environment():
    found = libpq("postgresql+psycopg://me:p%40ss@db.example:6432/turns")
    assert found["PGPASSWORD"] == "p@ss"
    assert (found["PGHOST"], found["PGPORT"], found["PGDATABASE"]) == ("db.example", "6432", "turns")
