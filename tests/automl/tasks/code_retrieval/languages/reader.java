/** A secret class. */
class Reader<T> {
  /**
   * Closes the <code>secret</code> {@link Reader} of a List&lt;T&gt;.
   * It may fail.
   *
   * <p>More secret words.
   * @param a secret
   */
  @Override
  public <U> int close(int a) throws X {
    // secret
    return a /* secret */ + "// kept".length(); // secret
  }

  /* secret: no Javadoc */
  Reader() { init(); }

  /** Secret, of what is within. */
  class Inner {
    /** {@inheritDoc} */
    void open() { go(); }
  }

  abstract void declared();
  void empty() { /* secret */ }
}

/** A secret record. */
record R(int a) { R { check(a); } }
