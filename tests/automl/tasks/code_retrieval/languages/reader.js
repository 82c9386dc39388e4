#!/usr/bin/env node
/** @license secret */

/**
 * Closes a secret reader.
 * @param {number} a secret
 */
export const close = async (a) => {
  // secret
  return a /* secret */ + `// kept ${a /* secret */}` + '/* kept */'
}

// secret: no JSDoc
function plain() { return 1 }

/** Secret prototypes. */
Reader.prototype.open = function () { return this }

;(function () {
  /** Within a secret module. */
  function inner() {
    function deeper() { return 2 }
    return deeper
  }
  /** A secret class. */
  class Reader extends Base {
    /** A secret method. */
    @dec read() { return super.read() }
    /** A secret field. */
    seek = (n) => n
    static *[Symbol.iterator]() { yield 1 }
  }
  return { /** A secret value. */ tell: function () { return 0 }, ...x }
})()

function empty() { /* secret */ }
