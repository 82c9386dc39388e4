<p>// kept outside</p>
<?php
namespace A\B;

/** A secret class. */
class Reader extends Base {
    /**
     * Closes a secret reader.
     *
     * More secret words.
     * @param int $a secret
     */
    #[Pure]
    public static function close(int $a = 1): ?string {
        # secret
        return "// kept {$a}" /* secret */ . <<<T
# kept
T;
    }
    abstract function declared();
}

// secret: no PHPDoc
function plain() { return 1; }

/** Secret functions. */
function top() { // secret
    return function () { return 2; };
}
function emptied() { /* secret */ }
