# Installs a build into an empty prefix and uses it as strangers would: find_package(kvart), then
# pkg-config. Arguments: build folder, scratch folder, C++ compiler.
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def run(*command, **options):
    print("+", *command, flush=True)
    return subprocess.run([str(word) for word in command], check=True, **options)


def main():
    build, scratch, compiler = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    shutil.rmtree(scratch, ignore_errors=True)
    prefix = scratch / "prefix"
    run("cmake", "--install", build, "--prefix", prefix, stdout=subprocess.DEVNULL)

    # The prefix moves after the install: nothing in it may know where it was.
    moved = scratch / "moved"
    prefix.rename(moved)
    consumer = scratch / "find-package"
    run("cmake", "-S", HERE, "-B", consumer, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={moved}",
        f"-DCMAKE_CXX_COMPILER={compiler}", stdout=subprocess.DEVNULL)
    run("cmake", "--build", consumer)
    run(consumer / "consumer")

    pc_folders = {str(pc.parent) for pc in moved.rglob("kvart.pc")}
    if len(pc_folders) != 1:
        sys.exit(f"expected one kvart.pc, found it in {sorted(pc_folders)}")
    search = os.pathsep.join([*pc_folders, *os.environ.get("PKG_CONFIG_PATH", "").split()])
    flags = run("pkg-config", "--cflags", "--libs", "kvart", stdout=subprocess.PIPE, text=True,
                env={**os.environ, "PKG_CONFIG_PATH": search}).stdout.split()
    run(compiler, "-std=c++20", HERE / "main.cpp", "-o", scratch / "by-pkg-config", *flags)
    run(scratch / "by-pkg-config")


if __name__ == "__main__":
    main()
